"""tna, the Tofino Native Architecture (first generation), as far as software can stand in for the chip."""
