"""SGLang's hierarchical cache with the pool as its third tier: `backend.KvcastHiCache`."""
