"""How a plan is shown: tables for a terminal, plots, one page of HTML."""
