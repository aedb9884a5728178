"""Runs a program in this process, then passes the token on: `python -I -c <this file> SOURCE TOKEN REPORT`.

The arguments are numbers of open files. A program that ends in any other way than by its last statement never comes to
the token. The program is a module named `program`, so what stands under `if __name__ == "__main__"` does not run: as in
HumanEval's own harness. Threads that still run end with the program.
"""

import os
import sys
import types


def run() -> None:
    # Under names of its own: the program may replace those of the module os.
    read, write, leave = os.read, os.write, os._exit
    source, token, report = map(int, sys.argv[1:])
    with open(source, encoding="utf-8") as file:
        text = file.read()
    program = types.ModuleType("program")
    sys.modules["program"] = program
    sys.argv = ["program"]
    exec(compile(text, "<program>", "exec", dont_inherit=True), program.__dict__)
    write(report, read(token, 64))
    sys.stdout.flush()
    sys.stderr.flush()
    leave(0)


if __name__ == "__main__":
    run()
