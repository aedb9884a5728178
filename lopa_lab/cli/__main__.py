"""`python -m lopa_lab.cli`: the commands of this package where none is installed, as in the working_dir of a job."""

from cluster.command_line.exit_status import run_app
from lopa_lab.cli import app

if __name__ == "__main__":
    run_app(app)
