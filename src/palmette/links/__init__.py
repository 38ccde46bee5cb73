"""Everything about communication: participation, exchanges, the ledger, messages as bytes."""

from palmette.links.exchange import Link as Link
from palmette.links.ledger import Ledger as Ledger
from palmette.links.participation import Participation as Participation
