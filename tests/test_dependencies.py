"""`constraints.txt` names one tested version for each dependency, and these are installed."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def read_constraints() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def pinned_version(requirement: Requirement) -> str:
    (pin,) = requirement.specifier
    assert pin.operator == "=="
    return pin.version


def test_every_dependency_has_a_tested_version_that_it_allows() -> None:
    constraints = read_constraints()
    for requirement in declared():
        pin = constraints[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned_version(pin), prereleases=True), requirement


def test_the_tested_versions_are_installed() -> None:
    differing: list[str] = []
    for name, requirement in read_constraints().items():
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue  # It belongs to an extra that is not installed here.
        if installed != pinned_version(requirement):
            differing.append(f"{name} {installed}, not {pinned_version(requirement)}")
    assert differing == [], "run make clean, or make lock where new versions are wanted"


def test_what_a_server_imports_is_bounded_by_the_next_major_version() -> None:
    unbounded = {"cryptography", "idna", "structlog"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        has_upper_bound = any(one.operator == "<" for one in requirement.specifier)
        assert has_upper_bound or canonicalize_name(requirement.name) in unbounded, line
