"""Discovery of replace rules, offline: small graphs are enumerated, and those that are equal are paired.

After TASO (Jia et al., SOSP 2019), with the finite fields of Mirage (Wu et al., OSDI 2025) and the multilinearity
argument of PET (Wang et al., OSDI 2021). In the order in which they are used:

    terms.py        a graph as nested tuples: rename, match, rewrite
    fingerprint.py  evaluates graphs over a pair of prime fields
    enumerate.py    all graphs over one choice of inputs, by size; those with one fingerprint together
    cost.py         peak bytes and arithmetic of a graph, in microseconds
    prune.py        one rule for each idea: renaming, common subgraphs, what other rules give
    verify.py       exact random testing, and the proof where there is one
    state.py        what is done so far, on disk
    run.py          all of it, resumable

`exla rules discover` is the command; what it found is `exla/rules/replace/discovered.json`.
"""
