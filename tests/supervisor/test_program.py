"""Which commands a fork of the zygote may run, and which are run verbatim."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from selfsched.elastic.job import JobDescription
from selfsched.elastic.program import package_in, program_of


def job(directory: Path, *command: str, fixed: bool = False) -> JobDescription:
    return JobDescription(
        run_directory=directory, program="command", command=command, working_directory=directory, fixed=fixed
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import pytorch_lightning as pl\n")
    (tmp_path / "other.py").write_text("# import pytorch_lightning\nimport lightning as L\n")
    return tmp_path


def test_a_script_or_module_of_this_interpreter_can_be_forked(directory: Path) -> None:
    script = program_of(job(directory, sys.executable, "-u", "train.py", "--lr", "1"))
    assert (script.kind, script.arguments, script.flags) == ("script", ("train.py", "--lr", "1"), ("-u",))
    module = program_of(job(directory, sys.executable, "-m", "package", "x"))
    assert (module.kind, module.arguments) == ("module", ("package", "x"))


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "-c", "python train.py"), ("uv", "run", "train.py"), (sys.executable, "-c", "pass"),
        (sys.executable, "-O", "train.py"), (sys.executable, "missing.py"), (sys.executable,),
        ("no-such-program",),
        (str(Path(sys.base_prefix) / "bin" / "python3"), "train.py"),
    ],
)  # fmt: skip
def test_anything_else_is_run_verbatim(directory: Path, command: tuple[str, ...]) -> None:
    program = program_of(job(directory, *command))
    assert (program.kind, program.arguments) == ("command", command)


def test_a_fixed_program_is_run_verbatim(directory: Path) -> None:
    assert program_of(job(directory, sys.executable, "train.py", fixed=True)).kind == "command"


def test_the_zygote_imports_the_package_that_the_script_names(directory: Path) -> None:
    assert package_in(["python", "train.py"], directory) == "pytorch_lightning"
    assert package_in(["python", "other.py"], directory) == "lightning.pytorch"
    assert package_in(["python", "-m", "package"], directory) == "lightning.pytorch"
