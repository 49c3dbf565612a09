"""`exla doctor`: what is installed, which devices and compilers work, and what is misconfigured.

A check is a function that returns findings, each with a status and, where something can be done, the next step. CHECKS
lists them; `examine` runs them, and one that fails is a finding itself. Nothing here imports JAX before a check asks
for it, and what may crash or hang, a compiler or a device, is tried in a process of its own (`exla.doctor.devices`).
"""
