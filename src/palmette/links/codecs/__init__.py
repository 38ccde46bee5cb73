"""Codecs: what a link does to the floating-point rows of a message so that they take fewer bytes."""

from palmette.links.codecs.codec import Codec as Codec
from palmette.links.codecs.codec import Encoded as Encoded
