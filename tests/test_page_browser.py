"""The page in a real browser: opened, clicked and typed into, on a desk and on a phone, with odd runs and odd names."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import palmette as pm
from page_runs import WILD, Tab, browser, digits, wild
from palmette.page import write_report
from palmette.runs.folder import CHECKPOINT, MANIFEST, METRICS, PROGRESS

pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def tab(chrome: Any) -> Iterator[Tab]:
    context = chrome.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    made = Tab(context.new_page())
    yield made
    assert made.complaints == []
    context.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("pages")
    digits("permfl", base / "permfl", settings={"team_steps": 3, "alpha": 0.3})
    digits("fedavg", base / "fedavg", rounds=6, settings={"alpha": 0.3})
    write_report(base / "permfl", out=base / "run.html")
    write_report(base / "permfl", base / "fedavg", out=base / "runs.html", theory=False)
    return base


@pytest.fixture
def opened(tab: Tab, folder: Path) -> Tab:
    tab.open(folder / "run.html")
    return tab


# -- reading -----------------------------------------------------------------------------------------------------------


def test_the_first_screen_says_what_came_out(opened: Tab, folder: Path) -> None:
    result = pm.load(folder / "permfl")
    lead = opened.text(".lead")
    assert f"personal models (PM) {100 * result.last('PM'):.1f} %" in lead
    box = opened.page.locator(".lead").bounding_box()
    assert box["y"] + box["height"] < 600, "one need not scroll to read it"
    assert opened.page.locator(".tile").count() == 4


def test_every_section_is_there_and_every_chart_is_drawn(opened: Tab) -> None:
    titles = opened.page.locator("section.card > h2").all_inner_texts()
    for title in (
        "Test accuracy over the rounds",
        "The tree",
        "The devices",
        "Team by team",
        "The samples",
        "Settings",
    ):
        assert title in titles
    assert opened.page.locator("figure svg").count() >= 4
    for figure in opened.page.locator("figure").all():
        assert figure.locator("svg path, svg rect, canvas").count() > 0


def test_a_team_opens_and_shows_its_devices(opened: Tab) -> None:
    button = opened.page.get_by_role("button", name="team-1", exact=True)
    assert button.get_attribute("aria-expanded") == "false"
    assert opened.page.locator("ul.devices:visible").count() == 0
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    shown = opened.page.locator("ul.devices:visible .pick").all_inner_texts()
    assert shown == ["device-4", "device-5", "device-6", "device-7"]
    button.click()
    assert opened.page.locator("ul.devices:visible").count() == 0


def test_a_device_is_found_and_shows_its_own_curve(opened: Tab, folder: Path) -> None:
    opened.page.get_by_placeholder("name of a device").fill("vice-11")
    opened.page.keyboard.press("Enter")
    panel = opened.page.locator(".panel")
    assert panel.locator("h3").inner_text() == "device-11"
    assert "in team-2" in panel.inner_text()
    own = pm.load(folder / "permfl").curve("PM", node="device-11")
    assert f"{100 * own[3]:.1f} %" in panel.inner_text()
    assert panel.locator("figure svg path").count() > 0
    opened.page.get_by_placeholder("name of a device").fill("nobody")
    assert "No device has “nobody” in its name." in opened.text(".found")


def test_a_table_sorts_by_a_click_and_back(opened: Tab) -> None:
    table = opened.page.locator("#run-teams table")
    head = table.get_by_role("columnheader", name="PM")
    values: list[list[float]] = []
    for wanted in ("descending", "ascending"):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == wanted
        values.append([float(text.split()[0]) for text in table.locator("tbody tr td:nth-child(4)").all_inner_texts()])
    assert values[0] == sorted(values[0], reverse=True)
    assert values[1] == sorted(values[0])


def test_colours_and_order_of_the_tree_are_the_readers_choice(opened: Tab, folder: Path) -> None:
    opened.page.get_by_label("Colour by").select_option("GM")
    result = pm.load(folder / "permfl")
    team = result.curve("GM", node="team-0")[3]
    assert opened.page.locator("ul.tree .chip").first.inner_text() == f"{100 * team:.1f} %"
    opened.page.get_by_label("Order").select_option("worst")
    chips = [float(text.split()[0]) for text in opened.page.locator("ul.tree > li > .node > .chip").all_inner_texts()]
    assert chips == sorted(chips)


def test_a_line_of_a_chart_can_be_hidden_and_its_numbers_read(opened: Tab) -> None:
    section = opened.page.locator("#run-curves")
    lines = section.locator('svg [data-mark="line"]')
    assert lines.count() == 3
    section.get_by_role("button", name="GM", exact=True).click()
    assert section.locator('svg [data-mark="line"]').count() == 2
    section.get_by_text("Show the numbers").click()
    rows = section.locator("details table tbody tr")
    rows.first.wait_for()
    assert rows.count() == 4  # the start and three rounds


def test_the_page_works_with_keys_alone(opened: Tab) -> None:
    opened.page.get_by_role("button", name="team-0", exact=True).focus()
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Enter")
    assert opened.text(".panel h3") == "device-0"


def test_everything_one_can_use_has_a_name_for_a_screen_reader(opened: Tab) -> None:
    nameless = opened.page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, [role=img], figure")].filter((one) => {
          const label = one.getAttribute("aria-label") || one.textContent.trim() || one.closest("label")?.textContent.trim();
          return !label;
        }).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    levels = opened.page.evaluate(
        '() => [...document.querySelectorAll("h1,h2,h3")].map((one) => Number(one.tagName[1]))'
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_sections_have_names_of_their_own_and_pictures_one_name_each(tab: Tab, folder: Path) -> None:
    tab.open(folder / "runs.html")
    tab.page.wait_for_selector("#group0-curves svg[role=img]")
    titles = tab.page.locator("section.card > h2").all_inner_texts()
    assert len(titles) == len(set(titles))
    assert tab.page.locator("figure > div > svg:not([role=img]), figure g[aria-label]").count() == 0


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast of two colours whose parts are at most 1."""

    def light(colour: list[float]) -> float:
        parts = [part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_on_colours_can_be_read(opened: Tab) -> None:
    for at in range(101):
        told = opened.page.evaluate(f"shade({at / 100})")
        fill = [int(part) / 255 for part in told["fill"][4:-1].split(",")]
        assert contrast(fill, [int(told["ink"][place : place + 2], 16) / 255 for place in (1, 3, 5)]) >= 4.5


def test_who_was_absent_when_and_what_it_cost_in_time_can_be_seen_and_read(chrome: Any, tmp_path: Path) -> None:
    links = {"all": {"lost": 0.3}, "teams": {"away": [["team-1", 2, 3]]}}
    settings = {"team_steps": 3, "local_steps": 2}
    result = digits("permfl", tmp_path / "storm", settings=settings, links=links, clock={"preset": "edge"})
    page = write_report(result, theory=False)
    for theme in ("light", "dark"):
        context = chrome.new_context(viewport={"width": 1180, "height": 900}, color_scheme=theme)
        tab = Tab(context.new_page())
        tab.open(page)
        assert tab.text("#run-absent h2") == "Who was absent when"
        assert "did not enter" in tab.text("#run-absent")
        cells = tab.page.locator("#run-absent table.heat tr:has(th:text-is('team-1')) td").all_inner_texts()
        assert cells[1] == "away"
        assert tab.page.locator("#run-traffic figure svg").count() >= 2
        assert "Accuracy for time on the simulated clock" in tab.text("#run-traffic")
        colours = "(cell) => [getComputedStyle(cell).backgroundColor, getComputedStyle(cell).color]"
        for fill, ink in tab.page.locator("#run-absent table.heat td").evaluate_all(f"(all) => all.map({colours})"):
            assert contrast(_parts(fill), _parts(ink)) >= 4.5
        assert tab.complaints == []
        context.close()


def _parts(colour: str) -> list[float]:
    """The three parts of a colour as a browser tells it, at most 1."""
    inside = colour[colour.index("(") + 1 : -1].replace("srgb", "").replace(",", " ").split()
    scale = 1 if colour.startswith("color(") else 255
    return [float(part) / scale for part in inside[:3]]


def test_tables_round_as_the_sentences_do(opened: Tab) -> None:
    for value in (0.8125, 0.0625, 0.6875, 0.9995, 0.31249, 1.0):
        assert opened.page.evaluate(f"score({value}, true)") == f"{100 * value:.1f} %"


# -- light, dark, phone, paper -----------------------------------------------------------------------------------------


def test_the_theme_follows_the_system_and_can_be_switched(chrome: Any, folder: Path) -> None:
    context = chrome.new_context(color_scheme="dark")
    tab = Tab(context.new_page())
    tab.open(folder / "run.html")
    colours = (
        'getComputedStyle(document.body).backgroundColor + getComputedStyle(document.querySelector("figure svg")).color'
    )
    dark = tab.page.evaluate(colours)
    tab.page.get_by_role("button", name="Light theme").click()
    light = tab.page.evaluate(colours)
    assert light != dark
    tab.page.reload()
    tab.page.wait_for_selector("#page h1")
    assert tab.page.evaluate(colours) == light, "the choice is remembered"
    assert tab.complaints == []
    context.close()


@pytest.mark.parametrize("name", ["run.html", "runs.html"])
def test_nothing_sticks_out_on_a_phone(name: str, chrome: Any, folder: Path) -> None:
    context = chrome.new_context(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    tab = Tab(context.new_page())
    tab.open(folder / name)
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.complaints == []
    context.close()


def test_it_prints_without_buttons(opened: Tab, tmp_path: Path) -> None:
    opened.page.emulate_media(media="print")
    assert not opened.page.locator(".bar").is_visible()
    assert not opened.page.locator(".controls").first.is_visible()
    opened.page.set_viewport_size({"width": 720, "height": 1000})  # of a sheet of A4
    tables = "[...document.querySelectorAll('table')].filter((one) => one.getBoundingClientRect().right > innerWidth)"
    assert opened.page.evaluate(f"{tables}.map((one) => one.innerText)") == []
    assert len(opened.page.pdf()) > 20_000


# -- several runs ------------------------------------------------------------------------------------------------------


def test_several_runs_stand_side_by_side_and_each_can_be_looked_at(tab: Tab, folder: Path) -> None:
    tab.open(folder / "runs.html")
    assert "Highest test accuracy" in tab.text(".lead")
    rows = tab.page.locator("#group0-methods tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["permfl", "fedavg"]
    assert tab.page.locator("#group0-paired svg").count() == 2
    tab.page.locator("#group0-methods").get_by_role("button", name="fedavg").click()
    assert tab.page.get_by_label("Run", exact=True).locator("option:checked").inner_text() == "fedavg, seed 0"
    assert str(folder / "fedavg") in tab.page.locator("#run-again pre").first.inner_text()


def test_runs_with_other_metrics_stand_on_one_page_each_with_its_own(tab: Tab, folder: Path, tmp_path: Path) -> None:
    result = pm.run("permfl", pm.testing.regression([2, 3]), "linear", rounds=2, out=tmp_path / "run", progress=False)
    tab.open(write_report(folder / "permfl", tmp_path / "run", out=tmp_path / "page.html", theory=False))
    cells = tab.page.locator("#overview tbody tr").first.locator("td").all_inner_texts()
    assert cells[0].removesuffix(" ★") == f"{100 * pm.load(folder / 'permfl').last('PM'):.1f} %"
    assert float(cells[1].removesuffix(" ★")) == pytest.approx(result.last("PM", "loss"), rel=1e-3)
    assert "Lowest test loss" in tab.text(".lead")


# -- odd runs ----------------------------------------------------------------------------------------------------------


def test_names_full_of_markup_are_shown_and_not_obeyed(tab: Tab, tmp_path: Path) -> None:
    tab.open(write_report(wild(tmp_path / "wild").folder))
    tab.page.get_by_role("button", name="<b>team</b>").click()
    shown = tab.page.locator("ul.devices:visible .pick").all_inner_texts()
    assert shown == WILD[:3]
    for name in WILD:
        tab.page.get_by_placeholder("name of a device").fill(name)
        tab.page.keyboard.press("Enter")
        assert tab.page.locator(".panel h3").inner_text() == name
    assert tab.page.evaluate("window.caught") is None


def test_ten_thousand_devices_are_painted_soon_and_found(tab: Tab, tmp_path: Path) -> None:
    people = pm.make_population("crowd", tree="100x100", samples=4, test_samples=4)
    settings = {"team_steps": 1, "local_steps": 1, "batch_size": 4}
    pm.run("permfl", people, rounds=1, settings=settings, out=tmp_path / "big", keep_state=False, progress=False)
    path = write_report(tmp_path / "big", theory=False)
    assert path.stat().st_size < 2_000_000
    tab.open(path)
    paints = tab.page.evaluate('performance.getEntriesByType("paint").map((one) => one.startTime)')
    assert max(paints) < 3000
    tab.page.get_by_placeholder("name of a device").fill("device-9876")
    tab.page.keyboard.press("Enter")
    assert "in team-98;" in tab.text(".panel")
    tab.page.get_by_role("button", name="Show more").first.click()
    assert tab.page.locator("ul.tree > li > .node").count() == 100


def unfinished(source: Path, place: Path, *, begun: bool) -> Path:
    """Copy a run as it would be had it been stopped: before its first round, or later."""
    shutil.copytree(source, place)
    (place / MANIFEST).unlink()
    (place / "state.bin").replace(place / CHECKPOINT)
    table = pm.load(source).metrics
    if begun:
        import pyarrow.parquet as pq

        half = table.filter([row <= 1 for row in table["round"].to_pylist()])
        pq.write_table(half.replace_schema_metadata({"so far": '{"round": 1}'}), place / PROGRESS)
    (place / METRICS).unlink()
    return place


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.filterwarnings("ignore:the run in")
def test_a_run_that_is_empty_or_half_done_has_a_page(begun: bool, tab: Tab, folder: Path, tmp_path: Path) -> None:
    tab.open(write_report(unfinished(folder / "permfl", tmp_path / "run", begun=begun)))
    lead = tab.text(".lead")
    assert f"was stopped after {int(begun)} of 3 rounds" in lead
    assert ("Nothing was measured yet." in lead) != begun
    assert "palmette resume" in tab.text("#run-again")
    assert tab.page.locator("#run-curves").count() == int(begun)


def test_a_run_that_diverged_says_so_first(tab: Tab, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="expect divergence"), pytest.raises(pm.Diverged):
        digits("permfl", tmp_path / "run", settings={"alpha": 1e4})
    tab.open(write_report(tmp_path / "run"))
    assert "diverged" in tab.text(".lead p")
    assert "expect divergence" in tab.text(".alert")


def test_flat_and_deep_trees_have_a_page(tab: Tab, tmp_path: Path) -> None:
    for tree, teams in (("6", 0), ("2x2x3", 2)):
        people = pm.make_population("digits", tree=tree)
        pm.run("fedavg", people, rounds=2, out=tmp_path / tree, progress=False)
        tab.open(write_report(tmp_path / tree))
        assert tab.page.locator("ul.tree > li > .node .open").count() == teams
        assert tab.page.locator(".chip").count() > 0
    tab.page.locator("ul.tree .open").first.click()
    tab.page.locator("ul.tree ul:visible .open").first.click()
    assert tab.page.locator("ul.devices:visible .pick").count() == 3


def test_distances_are_drawn_from_zero_and_named(tab: Tab, folder: Path) -> None:
    tab.open(write_report(folder / "fedavg", theory=False))
    chart = tab.page.locator("#run-distance figure svg")
    chart.wait_for()
    assert "distance, PM to GM" in chart.text_content()
    assert "0.0" in chart.locator('[data-mark="y-axis tick label"]').text_content()


def test_a_regression_without_accuracy_has_a_page(tab: Tab, tmp_path: Path) -> None:
    people = pm.testing.regression([2, 3])
    pm.run("permfl", people, "linear", rounds=2, out=tmp_path / "run", progress=False)
    tab.open(write_report(tmp_path / "run"))
    assert "test loss" in tab.text(".lead")
    assert tab.page.locator("#run-labels svg").count() == 1
