/* Hashes the pieces of what is read, while and after it comes, in threads of their own. The lock is the puller's; who
 * calls these holds it, but for `proving_run`. */
#pragma once

#include "pulling.h"

/* A thread of the puller's, until it stops. */
void *proving_run(void *puller);

/* Hashes a few pieces, if there are any, in the thread that receives, which has them in its cache: for when nothing
 * comes. Returns whether there were any. */
int proving_some(struct dp_puller *puller);

/* More of a pull whose leaves are wanted has come. */
void proving_came(struct dp_puller *puller, struct pull *pull, uint64_t have_bytes);

/* All of a pull has come, and this is to be told once it has its leaves. It is not the connection's any more. */
void proving_finish(struct dp_puller *puller, struct pull *pull, const struct dp_pulled *pulled);

/* Tells of what waits for its leaves without them: of one connection, of which nothing is to be told later. */
void proving_hurry(struct dp_puller *puller, uint64_t connection);

/* Nobody wants to hear of a pull that waits for its leaves; `number` 0: of any of the connection. */
void proving_forget(struct dp_puller *puller, uint64_t connection, uint64_t number);

/* Nobody wants the leaves of a pull. */
void proving_give_up(struct dp_puller *puller, struct pull *pull);

/* The connection has no use for a pull any more. It goes as soon as no thread hashes anything of it. */
void proving_let_go(struct dp_puller *puller, struct pull *pull);
