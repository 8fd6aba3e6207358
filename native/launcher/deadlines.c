/* The deadlines of a sandbox, by the keeper's own clock:
 *
 *   timeout   from its start
 *   ttl       until an end that its owner moves: requests at the door, door.c
 *   idle      since somebody last came to the door, or a program that entered has ended. What the sandbox itself does is no activity: it could go on for ever
 *
 * A time in which the sandbox is frozen counts like any other.
 */
#include "launcher.h"

static uint64_t timeout_at;
static struct plan_header *watched;

static uint64_t after(uint64_t now, uint64_t ns) {
    return now + ns < now ? ~0ull : now + ns;
}

static uint64_t earlier(uint64_t one, uint64_t other) {
    return !one || (other && other < one) ? other : one;
}

void deadlines_start(struct plan_header *plan) {
    uint64_t now = now_ns(1);
    watched = plan;
    timeout_at = plan->timeout_ns ? after(now, plan->timeout_ns) : 0;
    plan->ends_ns = plan->ttl_ns ? after(now, plan->ttl_ns) : 0;
    plan->active_ns = now;
}

uint64_t deadlines_next(const struct plan_header *plan) {
    uint64_t idle = plan->idle_ns ? after(plan->active_ns, plan->idle_ns) : 0;
    return earlier(earlier(timeout_at, plan->ends_ns), idle);
}

uint32_t deadlines_passed(struct plan_header *plan) {
    uint64_t now = now_ns(1);
    if (timeout_at && now >= timeout_at) return OUTCOME_TIMED_OUT;
    if (plan->ends_ns && now >= plan->ends_ns) return OUTCOME_TIMED_OUT | OUTCOME_EXPIRED;
    if (!plan->idle_ns || now < after(plan->active_ns, plan->idle_ns)) return 0;
    if (!door_busy()) return OUTCOME_TIMED_OUT | OUTCOME_IDLE;
    plan->active_ns = now;
    return 0;
}

/* A program that entered has ended. */
void deadlines_active(void) {
    watched->active_ns = now_ns(1);
}

/* Runs in the child that took the request; the plan is shared, and the keeper reads it when that child has ended. `ns` 0 only counts as activity. */
int deadlines_move(struct plan_header *plan, uint64_t ns) {
    if (ns) plan->ends_ns = after(now_ns(1), ns);
    return 0;
}
