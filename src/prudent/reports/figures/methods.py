"""How methods are named and drawn; plain data, so that a page without matplotlib can use it."""

__all__ = ["LABELS", "STYLES"]

# Okabe and Ito's palette, told apart with any colour vision; dashes and markers for grey prints.
STYLES = {
    "nre": ("#0072B2", "-", "o"),
    "bnre": ("#E69F00", "--", "s"),
    "calnre": ("#009E73", "-", "^"),
    "npe": ("#CC79A7", "-", "D"),
    "bnpe": ("#D55E00", "--", "v"),
    "calnpe": ("#56B4E9", "-", "P"),
}
LABELS = {
    "nre": "NRE",
    "bnre": "BNRE",
    "calnre": "CalNRE",
    "npe": "NPE",
    "bnpe": "BNPE",
    "calnpe": "CalNPE",
}
