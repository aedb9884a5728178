"""HTML pages from the templates beside this file. They escape what is put into them."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, **values: object) -> str:
    """The page. SVG text of `lopa_lab.paper.reports.plots` is the only thing that templates take as it is."""
    environment = Environment(
        loader=PackageLoader("lopa_lab.paper", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
