"""Everything about communication: who takes part, exchanges, codecs, faults, the clock, the ledger, messages as bytes."""

from palmette.links.ledger import Ledger as Ledger
from palmette.links.link import Faults as Faults
from palmette.links.link import Link as Link
from palmette.links.participation import Participation as Participation
