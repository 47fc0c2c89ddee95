"""What the product costs beside others: one machine, one run, one client. See README.md."""
