"""The page in a study's folder that says what the study is, what came out, what is where, and how to go on."""

from __future__ import annotations

from palmette.report.sheets import markdown, sheets
from palmette.studies.plan import Plan
from palmette.studies.study import Study
from palmette.studies.tuning import in_words

_WHAT = {
    "compare": "This folder compares methods on the same population.",
    "sweep": "This folder tries settings of one method on one population.",
    "demo": "This folder is the demo: the same methods on four small populations.",
}


def readme(plan: Plan, study: Study | None = None) -> str:
    """Write the page; with the study as it came out once it is done.

    Args:
        plan: What is to be done.
        study: What came out.
    """
    config = plan.arms[0].config
    seeds = ", ".join(map(str, plan.seeds))
    lines = ["# A study of Palmette", "", _WHAT[plan.kind]]
    lines += ["It was started with:", "", f"    {plan.command}", ""] if plan.command else [""]
    if plan.kind != "demo":
        tree = "" if config.data.planted else f", tree {config.make_tree()}"  # such data say it themselves
        lines += [f"- Data: {config.data.title}{tree}, model {config.model.title}."]
        lines += [f"- Methods: {', '.join(arm.name for arm in plan.arms if arm.role != 'point')}."]
    lines += [f"- Seeds: {seeds}. All methods meet the same population and participation for the same seed."]
    if plan.steps:
        most = f"{plan.steps:,} gradient steps with every method, fine-tuning counted"
        lines += [f"- Each device takes {most}; fewer where whole rounds do not come to it."]
    if plan.tune or any(arm.role == "point" for arm in plan.arms):
        whose = "for every seed by itself" if plan.tune_on == "each" else "with the first seed for all of them"
        lines += [
            f"- Settings are chosen, {whose}, on a quarter of the training samples of every device "
            f"(validation samples, by {plan.by}); then trained on all training samples and tested."
        ]
    for arm in plan.arms:
        if arm.space:
            searched = "; ".join(f"{name} in {in_words(one)}" for name, one in arm.space.items())
            lines.append(f"- Searched for {arm.name}: {searched}.")
    lines += ["", "## What is where", ""]
    lines += [
        "- `study.toml`: all that the study is made of.",
        "- `results.json`: what came out, as `--json` prints it.",
    ]
    where = "POPULATION/METHOD-SEED" if plan.kind == "demo" else "runs/METHOD-SEED"
    lines += [f"- `{where}`: the runs, each with its config, metrics, models and log."]
    if plan.tune:
        lines += ["- `tries/METHOD-SEED/NUMBER`: the runs that tried settings, tested on validation samples."]
    lines += ["- `outcomes.json`: runs that diverged or failed, if any.", "", "## Go on, and look again", ""]
    lines += [f"    palmette {verb} THIS-FOLDER" for verb in ("resume", "show", "report")] + [""]
    if study is not None and plan.kind != "demo":
        summary = study.summary()
        lines += ["## What came out", "", markdown(sheets(summary))]
        lines += [f"- {note}" for note in summary["notes"]]
    return "\n".join(lines).rstrip() + "\n"
