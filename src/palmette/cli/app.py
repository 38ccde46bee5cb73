"""The command ``palmette`` and its verbs."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.advise import advise
from palmette.cli.bench import bench
from palmette.cli.check import check
from palmette.cli.compare import compare
from palmette.cli.data import data as data_commands
from palmette.cli.deploy import deploy as deploy_commands
from palmette.cli.deploy import serve
from palmette.cli.failures import OneLineGroup, one_line_errors, print_json
from palmette.cli.figure import figure
from palmette.cli.new import new
from palmette.cli.out import adapt, export, predict
from palmette.cli.page import report, watch
from palmette.cli.reproduce import reproduce
from palmette.cli.sweep import sweep
from palmette.cli.verify import verify
from palmette.guards.terminal import say, tell

if TYPE_CHECKING:
    from palmette.runs import Result
    from palmette.track.tracker import Trackers

app = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


class Topic(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    datasets = "datasets"
    models = "models"
    experiments = "experiments"


class Exist(StrEnum):
    """What to do with a run that is there already."""

    fail = "fail"
    overwrite = "overwrite"
    resume = "resume"


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        tell(f"palmette {version('palmette')}")
        raise typer.Exit


@app.callback()
def palmette(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Personalized federated learning on trees of machines.

    It learns one model for everybody, one for every team and one for every device.

    Start with:  [bold]palmette demo[/bold]
    """


@app.command()
def run(
    algorithm: options.Algo = None,
    data: options.Data = None,
    tree: options.Tree = None,
    model: options.Model = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    settings: options.Set = None,
    config: options.Config = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder. [dim](default: a new one in runs/)[/dim]")
    ] = None,
    exist: Annotated[
        Exist,
        typer.Option(
            help="What to do if DIR already holds a run: stop with an error (fail), replace it (overwrite), "
            "or continue it if its settings are the same (resume)."
        ),
    ] = Exist.fail,
    track: options.Track = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train with one algorithm and keep the run in a folder.

    [bold]Example:[/bold]  palmette run permfl --data digits --tree 4x10 --rounds 5
    --set alpha=0.3 --set data.shift=rotate --set participation.devices=0.5

    A setting that is given twice: --set wins over the other
    options, and these win over the file of --config.
    """
    with one_line_errors():
        from palmette.cli.configure import configure
        from palmette.cli.progress import follow
        from palmette.runs import check_exist, execute
        from palmette.runs.folder import claimed
        from palmette.runs.together import leading
        from palmette.track.tracker import chosen

        check_exist(exist.value, out)
        trackers = chosen(track or (), "--track")
        given = {"data.name": data, "tree": tree, "model.name": model, "rounds": rounds, "seed": seed}
        made = configure(algorithm, file=config, options=given, assignments=settings or [])
        with claimed(out, Path("runs"), f"{made.label}-{made.data.label}") as folder, leading():
            result = follow(
                made.label,
                folder,
                lambda eyes: execute(made, folder, exist=exist.value, observer=eyes, track=trackers),
                quiet=quiet,
            )
        _say_tracked(result, trackers, quiet=quiet)
        _show(result, json=json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the run or the study.")],
    rounds: Annotated[
        int | None, typer.Option(metavar="T", help="Extend the run to T rounds in total; it may be finished.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where the run's algorithm is now, if its file was moved; the same code."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME", help="Where the run's own model is now, if its file was moved; the same code."
        ),
    ] = None,
    track: options.Track = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Continue a run that was stopped or killed, or give it more rounds.

    The result is the same, bit for bit, as if the run had
    never been stopped, or had been started with that many
    rounds.

    [bold]Example:[/bold]  palmette resume runs/permfl-digits-1 --rounds 50
    """
    with one_line_errors():
        from palmette.cli.configure import say_code
        from palmette.cli.progress import follow
        from palmette.errors import BadInput
        from palmette.runs import resume as go_on
        from palmette.runs.folder import Folder
        from palmette.runs.kept import config_in
        from palmette.runs.together import leading
        from palmette.studies.plan import is_study
        from palmette.track.tracker import chosen

        trackers = chosen(track or (), "--track")
        if is_study(folder):
            from palmette.cli.studying import continued

            if rounds is not None:
                raise BadInput("--rounds is for a single run; a study gets more rounds only in a new folder")
            if algorithm is not None:
                raise BadInput("--algorithm is for a single run; put the files of a study's algorithms back")
            if model is not None:
                raise BadInput("--model is for a single run; put the file of a study's model back")
            continued(folder, json=json, quiet=quiet, track=track or ())
            return
        files = Folder.open(folder)
        if not files.finished or rounds is not None:
            say_code(folder, config_in(files), algorithm=algorithm, model=model)
        else:
            say(f"the run in {folder} is finished; there is nothing left to do, unless you give it more --rounds")
        work = partial(go_on, folder, rounds=rounds, method=algorithm, model=model, progress=False, track=trackers)
        with leading():
            result = follow(folder.name, folder, lambda eyes: work(observer=eyes), quiet=quiet)
        _say_tracked(result, trackers, quiet=quiet)
        _show(result, json=json)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a study, or a folder of runs.")],
    json: options.Json = False,
) -> None:
    """Show the results of a run, team by team, or list the runs in a folder.

    For a run that is not finished it shows how far it has come.

    [bold]Example:[/bold]  palmette show runs
    """
    with one_line_errors():
        from palmette.runs import Result
        from palmette.runs.folder import CONFIG, runs_in
        from palmette.studies.plan import is_study, studies_in

        if is_study(folder):
            from palmette.cli.studying import Outputs, presented
            from palmette.studies.study import Study

            presented(Study(folder), Outputs(), json=json)
        elif not (folder / CONFIG).exists() and ((found := runs_in(folder)) or studies_in(folder)):
            own = [path for path in found if not is_study(path.parent)]  # others belong to a study
            _list(own, studies_in(folder), folder, json=json)
        else:
            _show(Result(folder), json=json, teams=True)


@app.command("list")
def list_(
    topic: Annotated[Topic, typer.Argument(help="What to list.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="One of them, to see its settings; also your own: ./mine.py", show_default=False
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the algorithms, data sets, models or published experiments.

    With a name it shows that one alone, with all its settings.

    [bold]Example:[/bold]  palmette list algorithms permfl
    """
    with one_line_errors():
        from palmette.cli.details import details
        from palmette.cli.listing import listed, picture
        from palmette.cli.reference import entry

        told: Any
        told, problems = listed(topic.value) if name is None else (entry(topic.value, name), [])
        for problem in problems:
            say(problem)
        if json:
            print_json(told)
            return
        from palmette.guards.screen import Screen

        Screen().print(picture(topic.value, told) if isinstance(told, list) else details(told))


@app.command()
def demo(quiet: options.Quiet = False) -> None:
    """Show which method fits which population, on four small ones.

    It compares local training, FedAvg, FedAvg in each team, hierarchical FedAvg
    and PerMFL, all with the same number of gradient steps on every device. It
    takes less than a minute and needs no file.

    [bold]Example:[/bold]  palmette demo
    """
    with one_line_errors():
        tell("Which method for which population? Eight methods learn on four small ones.")
        from palmette.cli.demo import run_demo

        run_demo(quiet=quiet)


app.command()(advise)
app.command()(bench)
app.command()(check)
app.command()(compare)
app.command()(figure)
app.command()(new)
app.command()(report)
app.command()(reproduce)
app.command()(sweep)
app.command()(verify)
app.command()(watch)
app.command()(predict)
app.command()(adapt)
app.command()(export)
app.add_typer(data_commands, name="data")
app.command()(serve)
app.add_typer(deploy_commands, name="deploy")


def _say_tracked(result: Result, trackers: Trackers, *, quiet: bool) -> None:
    """Say where trackers keep a run."""
    from palmette.runs.tracking import kept

    for name, about in kept(result.folder).items():
        if name in trackers.makers and not quiet:
            say(f"tracked by {name}: {about['where']}")


def _show(result: Result, *, json: bool, teams: bool = False) -> None:
    """Print a run on standard output."""
    if json:
        print_json(result.summary())
        return
    from palmette.guards.screen import Screen
    from palmette.report.tables import run_report

    Screen().print(run_report(result, teams=teams))


def _list(folders: list[Path], studies: list[Path], base: Path, *, json: bool) -> None:
    """Print a line for each of some runs and studies; what cannot be read is told on standard error."""
    from palmette.errors import BadInput
    from palmette.runs import Result
    from palmette.studies.study import Study

    results, others = [], []
    for folder in [*folders, *studies]:
        try:
            if folder in studies:
                others.append(Study(folder).line())
            else:
                results.append(Result(folder))
        except BadInput as error:
            say(f"left out {folder}: {error}")
    if json:
        print_json([*(result.line() for result in results), *others])
        return
    from palmette.guards.screen import Screen
    from palmette.report.tables import runs_table, studies_table

    screen = Screen()
    if results or not others:
        screen.print(runs_table(results, base))
    if others:
        screen.print(studies_table(others, base))
