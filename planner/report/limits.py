"""What the reader of a report has to know of the model."""

LIMITS = (
    "Engines prefill one request after the other, at a rate from operations and one efficiency (or --prefill-rate).",
    "Decoding, batching and the accelerators' memory are not modelled.",
    "Links are fluids shared max-min fairly: on the incast benchmark the model is within 10 % of what was measured.",
    "Endpoints keep up with their links, as RDMA does and sockets in Python do not.",
    "A disk is two queues, reads and writes, at one rate; demotions and promotions are the agents' own.",
    "A chunk is a block of the trace (512 tokens). What was shared inside a block is not known.",
    "Every node sees the directory as the controller has it; the few milliseconds until a change arrives are left out.",
    "Relays are a perfect chain. Measured ones took half as long again, and longer where uplinks were busy.",
    "Arrivals that a trace gives in ticks of 3 s are spread over the tick at random (seeded).",
    "The sweeps replay the beginning of the trace with cold caches, one setting changed at a time.",
    "Processor time of the controller is what its Python core took on the machine that planned.",
)
