"""Deterministic simulation: real readers and holders on modelled links, switches and hosts, under a virtual clock."""
