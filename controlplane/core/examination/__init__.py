"""`kvcast doctor cluster`: tries every path between agents and switch, and says which are broken. Pure.

`script` decides what is tried, step by step, and collects `observations`; `verdict` makes findings of them, with
`observations.blame` for the smallest explanation of what fails. `examinations` lets agents and switch take the steps.
"""
