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


def declared_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def pinned_version(requirement: Requirement) -> str:
    (pin,) = requirement.specifier
    assert pin.operator == "=="
    return pin.version


def test_every_dependency_has_a_tested_version_that_it_allows() -> None:
    constraints = read_constraints()
    for requirement in declared_requirements():
        pin = constraints[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned_version(pin), prereleases=True), requirement


def test_the_tested_versions_are_installed() -> None:
    wrong_versions: list[str] = []
    for name, requirement in read_constraints().items():
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue  # It belongs to an extra that is not installed here.
        if installed != pinned_version(requirement):
            wrong_versions.append(f"{name} {installed}, not {pinned_version(requirement)}")
    assert wrong_versions == [], "run make clean, or make lock where new versions are wanted"


def test_dependencies_of_the_server_are_bounded_by_the_next_major_version() -> None:
    # Their major version is a year or the number of any release, so it announces no incompatible change.
    allowed_without_bound = {"cryptography", "idna", "structlog"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        has_upper_bound = any(clause.operator == "<" for clause in requirement.specifier)
        assert has_upper_bound or canonicalize_name(requirement.name) in allowed_without_bound, line
