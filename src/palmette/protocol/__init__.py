"""What an algorithm is: programs of the nodes of a tree, written once, run stacked or one node at a time.

A program that has children is a generator: it **yields a message for them and gets their replies back**. A device program
is a plain function. All rows a program sees have one line per node of its stack: in the simulator one generator serves a
whole tier, on a real machine the same text runs with a stack of one. Programs never write into their inputs, never look
across rows, and know nothing of participation, bytes, encodings or faults: those live at the ``yield``.

    def team(self, node, message, state):
        replies = yield Ask(message)          # to the children of every node of the stack
        return replies.rows, {}               # one row per node, and what to keep until next time
"""

from palmette.protocol.algorithm import Algorithm as Algorithm
from palmette.protocol.algorithm import Inner as Inner
from palmette.protocol.algorithm import Server as Server
from palmette.protocol.algorithm import check_per_tier as check_per_tier
from palmette.protocol.algorithm import inverse as inverse
from palmette.protocol.messages import Ask as Ask
from palmette.protocol.messages import Message as Message
from palmette.protocol.messages import PerChild as PerChild
from palmette.protocol.messages import Reduce as Reduce
from palmette.protocol.messages import Replies as Replies
from palmette.protocol.node import Device as Device
from palmette.protocol.node import ModelKind as ModelKind
from palmette.protocol.node import Node as Node
from palmette.protocol.node import Setting as Setting
from palmette.protocol.node import State as State
from palmette.protocol.node import model_kind as model_kind
