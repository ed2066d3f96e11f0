"""What the README and the pages show is true: snippets run, commands and their options exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from readme.snippets import PAGES, ROOT, commands, python

from selfsched.cli import app
from selfsched_broker.cli import app as broker_app

MODEL = """
import lightning as L, torch
from torch.utils.data import DataLoader, TensorDataset

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        return ((self.layer(batch[0]) - batch[1]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(32, 2), torch.ones(32, 1)), batch_size=4)

L.seed_everything(1)
model, data = Line(), Data()
"""


def parse(application: typer.Typer, words: list[str]) -> Any:
    """Parse a command line as the program would, down to the last subcommand, running nothing."""
    command: Any = typer.main.get_command(application)
    context = command.make_context("program", list(words))
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        # A bare `selfsched run` in a sentence names the command; it need not be whole.
        context = command.make_context(name, rest, parent=context, resilient_parsing=len(words) == 1)
    return context


@pytest.mark.parametrize(
    ("application", "words"),
    [pytest.param(app, words, id=" ".join(words)) for page in PAGES for words in commands(page, "selfsched")]
    + [
        pytest.param(broker_app, words, id=" ".join(words))
        for page in PAGES
        for words in commands(page, "selfsched-broker")
    ],
)
def test_every_command_that_is_shown_is_one(application: typer.Typer, words: list[str]) -> None:
    assert parse(application, words) is not None


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (*PAGES, "docs/index.md", "docs/architecture.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_the_modules_that_the_map_names_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for name in re.findall(r"`((?:selfsched|server)/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name


def run(code: str, directory: Path, *launch: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = directory / "train.py"
    script.write_text(code)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SELFSCHED_RUNS_DIR": str(directory / "runs"), **environment}
    return subprocess.run(
        [*launch, sys.executable, str(script)],
        cwd=directory, env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("plan", [None, "1@0,2@7"])
def test_the_script_of_the_readme_trains(plan: str | None, tmp_path: Path) -> None:
    code = MODEL + python("README.md")["script"]
    code += "\ntrainer = train(model, data.train_dataloader())\nprint('steps', trainer.global_step)\n"
    launcher = (
        [sys.executable, "-m", "selfsched", "run", "--devices", "1-2", "--plan", plan, "--"] if plan else []
    )
    done = run(code, tmp_path, *launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps 16" in done.stdout


@pytest.mark.slow
def test_the_cell_of_the_readme_trains(tmp_path: Path) -> None:
    code = MODEL + python("README.md")["notebook"] + "\nprint('steps', trainer.global_step)\n"
    done = run(code, tmp_path, SELFSCHED_OFF="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps 16" in done.stdout
