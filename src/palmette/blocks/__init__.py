"""Mathematics that several algorithms share: pure functions of rows that know nothing of trees and messages."""
