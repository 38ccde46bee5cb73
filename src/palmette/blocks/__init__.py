"""Mathematics that several algorithms share: each block is written once and knows no algorithm."""
