"""Ladder: one model for everybody, from it one per team, from that one per device, each tier trained in its turn.

1. The global model x by federated averaging over all devices.
2. A model w_i for every team by federated averaging inside the team, from x, its devices pulled to x with ``gamma``.
3. A model theta_ij for every device by itself, from w_i, pulled to w_i with ``lam``.

So tier by tier it minimises, over w_i and then theta_ij,

    mean_j f_ij(w_i) + gamma/2 |w_i - x|^2     and     f_ij(theta_ij) + lam/2 |theta_ij - w_i|^2.

A pull says how far models may lie apart and never how fast they move: a step is implicit in the pull,

    theta <- (theta - alpha gradient + alpha pull centre) / (1 + alpha pull),

which is stable for any pull wherever gradient descent without one is. An infinite pull takes the model above as it is, a pull
of zero forgets where a model began. On deeper trees every inner tier has its turn, from the top down.

With ``"auto"`` the first round begins with a survey (`palmette.blocks.survey`): extra exchanges in which everybody finds out
how different teams and devices are and how noisy their samples are. The pulls follow from that: ``h c^2 s2 / (s n)`` for a node
with n training samples in a tier of variance s, where s2 is that of the noise. It is the pull of a mixed (multilevel) model.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palmette.blocks.seen import Shape
from palmette.blocks.survey import ENDLESS, WORD, Found, Survey, Way
from palmette.blocks.surveyed import bare
from palmette.blocks.turns import (
    LAST,
    Plan,
    directed,
    endless,
    hand_over,
    pass_down,
    plan_row,
    plan_size,
    stage,
    turns,
    upper_pulls,
)
from palmette.errors import BadInput
from palmette.learner.directions import Directions
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State, check_per_tier, inverse
from palmette.protocol.settings import NUMBER, BatchSize, Between, Count, Rate, settings
from palmette.tree import Tree

Pull = Annotated[float, Field(ge=0), NUMBER]
"""Zero for none, infinite to take the model above as it is."""
Auto = Literal["auto"]
_HALF = 0.5  # the share of the global model where nobody is asked how different teams are
_LATER = "the survey also finds how the rounds are split between the tiers; it is reported as rounds of turn"


@settings
class Ladder(Algorithm):
    """A global model, then team models pulled to it, then personal models pulled to those, each tier in its turn.

    Attributes:
        share: Share of the rounds that go to the global model; on deeper trees also to each inner tier but the lowest, of
            the rounds that are left to it. ``"auto"``: the more teams have in common, the more, where a pull is ``"auto"``
            too; half where all pulls are given, since then nobody is asked how different teams are.
        team_steps: Averages in a team in every round; on deeper trees also a list with one number per inner tier, lowest first.
        local_steps: Gradient steps of a device between two averages.
        tune_steps: Gradient steps that make a device's own model from its team's; with few rounds, or devices that are alike,
            they can make it worse.
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable.
        lam: Pull (proximal strength) of a device's model to its team's; ``inf`` takes the team's model as it is, 0 is plain
            fine-tuning. Also one number per device name. ``"auto"`` finds it from how different devices are.
        gamma: Pull (proximal strength) of a team's model to the model above it; ``inf`` takes that model as it is, 0 trains
            every team by itself. Also one number per team name; on deeper trees a list with one number per inner tier,
            lowest first. ``"auto"`` finds it from how different teams are.
        directions: Whether ``"auto"`` finds a pull of its own for every principal direction of the features, 30 at the most;
            for linear models.
        survey: What leaves a device to find pulls: ``"moments"`` are second moments of its samples, which its team sees;
            ``"sums"`` are numbers of which the team needs only the sum over its devices.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "ladder"
    paper: ClassVar[str] = (
        "Palmette's own method, after the mixed model of Lyu, Hanzely, Kolar; see docs/measured/advise.md"
    )
    absent: ClassVar[str] = (
        "A device that is left out does nothing; one that was never told its pull uses its team's model as it is."
    )
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.01, 1.0),
        "tune_steps": Between(5, 200, whole=True),
    }
    by_name: ClassVar[Mapping[str, int]] = {"alpha": 0, "lam": 0, "gamma": 1}

    share: Auto | Annotated[float, Field(gt=0, lt=1), NUMBER] = "auto"
    team_steps: Count | tuple[Count, ...] = 1
    local_steps: Count = 20
    tune_steps: Count = 40
    alpha: Rate = 0.05
    lam: Auto | Pull | dict[str, Pull] = "auto"
    gamma: Auto | Pull | tuple[Pull, ...] | dict[str, Pull] = "auto"
    directions: bool = False
    survey: Way = "moments"
    batch_size: BatchSize = 20

    def check(self, tree: Tree) -> None:
        """Refuse lists that do not fit the tree, and teams' names on trees with several tiers of teams."""
        check_per_tier(tree, team_steps=self.team_steps, gamma=self.gamma)
        if isinstance(self.gamma, dict) and tree.tiers != 3:
            raise BadInput("gamma by team name is for trees with one tier of teams; give a list, an entry per tier")
        if self.directions and "auto" not in (self.lam, self.gamma):
            raise BadInput("directions = true is about the pulls that 'auto' finds, and lam and gamma are both given")
        super().check(tree)

    @property
    def surveys(self) -> bool:
        """Whether a pull is found by a survey; where none is, nobody is asked for anything about its samples."""
        return "auto" in (self.lam, self.gamma)

    @property
    def _survey(self) -> Survey:
        return Survey(self.survey, self.directions)

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Inner nodes keep a model, the one above and who began their turn; what a survey found goes to everybody."""
        found = {"plan": initial.new_zeros(plan_size(node, self.directions))} if self.surveys else {}
        if self.directions and not Shape.of(node.layout).alone:
            raise BadInput(
                "directions = true is for linear models, such as mclr or linear, and this model is a network; leave it out"
            )
        if node.tier == 0:
            return {**found, **self._survey.keeps(node, initial)} if self.surveys else {}
        kept = {"model": initial, **found}
        if node.tier < node.tree.top:
            kept["above"] = initial
        if node.tier > 1:
            kept["began"] = initial.new_zeros(node.tree.size(node.tier - 1))
        return kept

    def stable(self, curvature: float) -> dict[str, float]:
        """Steps that are implicit in the pull are stable up to 1 / L, whatever the pulls."""
        return {"alpha": inverse(curvature)}

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell the rounds of every tier's turn and the pulls that were found.

        A pull may be infinite, which no table can average: such nodes are counted as ``model_above_as_it_is``. Those that
        were never told have no number.
        """
        if not self.surveys:
            return {}
        plan = Plan(state["plan"], node)
        told = {"rounds_of_turn": plan.rounds(node.tier)} if node.tier else {}
        if node.tier == node.tree.top or self._given(node.tier) != "auto":
            return told
        pull = plan.strengths(node.tier)[:, 0]
        as_it_is = plan.told & (pull >= ENDLESS)
        told["pull"] = torch.where(plan.told & ~as_it_is, pull, torch.nan)
        return {**told, "model_above_as_it_is": as_it_is.long()}

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _turns_by_settings(self, tree: Tree, rounds: int) -> dict[int, int] | None:
        """Return the rounds of every tier, the server's first; ``None`` where a survey has yet to find them."""
        if "auto" in (self.gamma, self.share) and self.surveys and tree.top > 1:
            return None
        share = _HALF if self.share == "auto" else self.share
        return turns(tree, rounds, share, {tier: endless(self._given(tier)) for tier in range(1, tree.top)})

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        """Tell how many rounds every tier has, and what a survey costs."""
        survey = self._survey.outline(tree) if self.surveys else {}
        each = self._turns_by_settings(tree, rounds)
        if each is None:
            return {**survey, "turns": _LATER}
        told: dict[str, Any] = {**survey, "global_rounds": each.pop(tree.top)}
        if each:
            given = list(each.values())[::-1]
            told["team_rounds"] = given[0] if len(given) == 1 else given
        return told

    def _given(self, tier: int) -> Any:
        """Return the setting for the pull of a tier to its parents."""
        if tier == 0:
            return self.lam
        return self.gamma[tier - 1] if isinstance(self.gamma, tuple) else self.gamma

    def _stage(self, node: Node, plan: Tensor | None) -> int:
        """Return the tier whose models are trained in this round."""
        if plan is not None:
            return Plan(plan, node).stage
        given = self._turns_by_settings(node.tree, node.rounds)
        assert given is not None
        return stage(node, list(accumulate(given.values())))

    def _planned(self, node: Node, found: Found) -> Tensor:
        """Return what a survey found as the row that goes to everybody."""
        auto = {tier: self._given(tier) == "auto" for tier in range(1, node.tree.top)}
        skipped = {
            tier: bool(found.pulls[tier] >= ENDLESS) if auto[tier] else endless(self._given(tier)) for tier in auto
        }
        share = found.share if self.share == "auto" else self.share
        each = turns(node.tree, node.rounds - node.round, share, skipped)
        return plan_row(found, each, node.round, self.directions)

    # -- programs ------------------------------------------------------------------------------------------------------

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Train the model that came down on one's own data, pulled to the model above it where there is one."""
        if WORD in message:
            return self._survey.answer(node, message, state)
        state = {**state, "plan": message["plan"][:, 0].to(state["plan"])} if self.surveys else state
        w = message["model"]
        if "above" not in message:
            return self._descend(node, w, w, 0.0, self.local_steps), state
        return self._descend(
            node, w, message["above"], directed(node, message["pull"][:, 0], state), self.local_steps
        ), state

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Train one's team's model further, pulled back to it."""
        if self.lam != "auto":
            given = node.own(self.lam, parent)
            given = given.clamp(max=ENDLESS) if isinstance(given, Tensor) else min(given, ENDLESS)
            return self._descend(node, parent, parent, given, self.tune_steps)
        strength = Plan(state["plan"], node).strengths(0).to(parent)
        return self._descend(node, parent, parent, directed(node, strength, state), self.tune_steps)

    def _descend(
        self, node: Device, start: Tensor, centre: Tensor, pull: float | Tensor | Directions, steps: int
    ) -> Tensor:
        """Take steps that are implicit in the pull."""
        alpha = node.own(self.alpha, start)
        if isinstance(pull, Directions):
            return node.descend(start, steps=steps, lr=_row(alpha), pull=pull, centre=centre)
        if bool((torch.as_tensor(pull) >= ENDLESS).all()):
            return centre
        return node.descend(start, steps=steps, lr=_row(alpha / (1 + alpha * pull)), pull=_row(pull), centre=centre)

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Train one's own model in one's turn; before it pass on what comes down and average, after it hand one's over."""
        plan, given = None, message
        if given is not None and WORD in given:
            return (yield from self._survey.pass_on(node, given, state))
        if self.surveys:
            plan = state["plan"] if given is None else given["plan"][:, 0].to(state["plan"])
            state = {**state, "plan": plan}
        if given is not None and LAST in given:
            if node.tier > 1:
                yield Ask(given, reduce="stack")
            return None, {**state, "model": given["model"], "above": given["model"]}
        now = self._stage(node, plan)
        if now < node.tier:
            if given is not None:
                state = {**state, "model": given["model"], "above": given["model"]}
            return None, (yield from hand_over(node, state, plan))
        told: dict[str, Any] = {} if plan is None else {"plan": bare(plan)}
        if now == node.tier:
            w, above = (state["model"], state["above"]) if given is None else (given["model"], given["model"])
            told |= {"above": above, "pull": bare(upper_pulls(node, self._given(node.tier), w, plan, self.directions))}
        else:
            assert given is not None  # nobody is left to itself before its turn
            w, above = given["model"], state["above"]
            told |= {name: given[name] for name in ("above", "pull") if name in given}
            state = {**state, "model": told.get("above", w)}
        steps = self.team_steps[node.tier - 1] if isinstance(self.team_steps, tuple) else self.team_steps
        for _ in range(steps):
            got = yield Ask({"model": w, **told}, reduce="samples", otherwise=w)
            w = got.rows
        if now > node.tier:
            return w, state
        yield from pass_down(node, w, told)
        return None, {**state, "model": w, "above": above}

    def server(self, node: Node, state: State) -> Server:
        """Average over all devices in the global model's turn; then hand it over."""
        plan = None
        if self.surveys:
            if not bool(state["plan"].any()):
                found = yield from self._survey.ask(node, state["model"])
                if found is None:
                    return state  # nobody answered yet
                state = {**state, "plan": self._planned(node, found).to(state["plan"])}
            plan = state["plan"]
        now = self._stage(node, plan)
        if now < node.tier:
            return (yield from hand_over(node, state, plan))
        message = {"model": state["model"], **({} if plan is None else {"plan": bare(plan)})}
        replies = yield Ask(message, reduce="samples", otherwise=state["model"])
        yield from pass_down(node, replies.rows, message)
        return {**state, "model": replies.rows}


def _row(value: float | Tensor) -> float | Tensor:
    """Return a column as one number per row."""
    return value.flatten() if isinstance(value, Tensor) else value
