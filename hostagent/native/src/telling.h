/* What the caller of a puller hears, in order. The lock is the puller's, held by whoever calls. */
#pragma once

#include "pulling.h"

/* `told`: room for it, which is the puller's from here on. */
void telling_add(struct dp_puller *puller, struct told *told, const struct dp_pulled *pulled);

/* A pull, with the room that nobody has used. NULL is fine, too. */
void telling_free_pull(struct pull *pull);
