/* The launcher: a small static program without a libc that carries out a plan.
 *
 *   starter     clone3(VM | VFORK), fds to their slots, exec of this program                        clone.c
 *   keeper      the operations before CLONE, in the host's namespaces; then waits for init          keeper.c
 *     init      the operations up to SPAWN: the root file system, the namespaces' insides           init.c
 *       program the operations up to EXEC: ids, limits, capabilities, seccomp, the program
 *
 * Everything the starter learns comes as messages on one pipe: FAILED(operation, errno) or READY, later STATUS. The program runs on init's memory until its exec
 * (CLONE_VM | CLONE_VFORK), so init knows by memory, not by guessing, whether the exec succeeded.
 */
#include "launcher.h"

static char program_stack[32768] __attribute__((aligned(PAGE))), init_stack[32768] __attribute__((aligned(16)));
static char way_stacks[2][8192] __attribute__((aligned(16)));

static char *title; /* what the host shows as our command line */

static uint64_t allowed[16];
static sysret allowed_size;

/* A start is a relay: starter, keeper, init, program, each waiting for the next. Spread over processors, every hand-over to a busy one waits there for a time
 * slice, so the whole relay is run on one, and each runner is let go when it is done. Measured: a few per cent on a quiet machine, half on a loud one. */
static void stay_here(void) {
    uint64_t here[16] = {0};
    uint32_t cpu = 0;
    allowed_size = sys(NR_sched_getaffinity, 0, sizeof allowed, allowed);
    if (allowed_size <= 0 || sys(NR_getcpu, &cpu, 0, 0) < 0 || cpu >= 1024) return;
    here[cpu / 64] = 1ull << cpu % 64;
    sys(NR_sched_setaffinity, 0, allowed_size, here);
}

void go_anywhere(void) {
    if (allowed_size > 0) sys(NR_sched_setaffinity, 0, allowed_size, allowed);
}

/* Where in the plan somebody begins who does so on our memory. */
struct place {
    struct plan_header *plan;
    uint32_t pc;
};

static void stamp(struct plan_header *plan, uint32_t pc) {
    if (plan->flags & PLAN_TIMES) ((uint64_t *)((char *)plan + plan->times_offset))[pc] = now_ns(1 /* MONOTONIC */);
}

/* One operation, with the recorder running. 0 or the errno. */
static int step(struct plan_header *plan, uint32_t pc) {
    const struct plan_op *op = &plan_ops(plan)[pc];
    plan->pc = (int32_t)pc;
    int err = op_run(plan, op);
    stamp(plan, pc);
    if ((op->flags & OP_OPTIONAL) && (err == -E_NOENT || err == -E_NOTDIR)) return 0;
    return err < 0 ? -err : 0;
}

static void fail(struct plan_header *plan, uint32_t pc, int error) {
    plan->error = error;
    report(REPORT_FAILED, (uint16_t)pc, error, 0);
    die(1);
}

/* Closes every descriptor from `first` on but the program of what enters. */
static void close_from(int first, struct plan_header *plan) {
    if (plan->flags & PLAN_ENTER) {
        sys(NR_close_range, first, SLOT_PROGRAM - 1, 0);
        first = SLOT_PROGRAM + 1;
    }
    sys(NR_close_range, first, ~0u, 0);
}

/* From here on only 0-2 are open, and really closed, not marked: while execve resolves the program, its "#!" line and its ELF interpreter, what is marked
 * close-on-exec is still there, and /proc/self/fd/N/../.. leads wherever N does (CVE-2024-21626). A program given as a descriptor is no directory, and marked.
 * An error travels by the shared memory. */
static void run_program(void *argument) {
    struct place *program = argument;
    struct plan_header *plan = program->plan;
    plan->phase = PHASE_PROGRAM;
    close_from(3, plan);
    go_anywhere();
    for (uint32_t pc = program->pc; pc < plan->n_ops; pc++) {
        int error = step(plan, pc);
        if (error) {
            plan->error = error;
            break;
        }
        if (plan_ops(plan)[pc].code == OP_SET_IDS || plan_ops(plan)[pc].code == OP_FS_IDS) dumpable(0); /* as in spawn() */
    }
    die(127);
}

/* What the three standard streams are is up to the caller, but through a directory the program would reach everything around it. 0 or an errno. */
static int refuse_directories(void) {
    for (int fd = 0; fd <= 2; fd++) {
        struct facts stream = {0};
        if (facts_of(fd, &stream) == 0 && stream.type == TYPE_DIRECTORY) return E_ISDIR;
    }
    return 0;
}

static void spawn(struct plan_header *plan, uint32_t pc) {
    struct place program = {plan, pc + 1};
    struct clone_args args = {
        .flags = CLONE_VM_ | CLONE_VFORK_,
        .exit_signal = SIG_CHLD,
        .stack = (uint64_t)(uintptr_t)program_stack,
        .stack_size = sizeof program_stack,
    };
    plan->pc = (int32_t)pc;
    int error = refuse_directories();
    if (error) fail(plan, pc, error);
    /* Layers, upper, the sandbox's directory: init needs none of them any more, and nothing inside may find them in it. */
    sys(NR_close_range, SLOT_PLAN, SLOT_PLAN, 0);
    close_from(SLOT_DOOR, plan);
    sys(NR_prctl, 15 /* NAME */, "dockless-init", 0, 0, 0);
    dumpable(0); /* where suid_dumpable in proc_sys_fs(5) is 1, whoever takes other ids is dumpable again */
    sysret pid = clone_call(&args, run_program, &program);
    if (pid < 0) fail(plan, pc, (int)-pid);
    if (plan->error) fail(plan, (uint32_t)plan->pc, plan->error);
    /* No error, but it never came to the exec: it was killed on the way. */
    if ((uint32_t)plan->pc + 1 != plan->n_ops) fail(plan, (uint32_t)plan->pc, 0);
    stamp(plan, plan->n_ops - 1);
    plan->phase = PHASE_READY;
    report(REPORT_READY, 0, plan->init_pid, 0);
    init_run(plan, (int)pid);
}

static void run_init(struct plan_header *plan, uint32_t pc) {
    plan->phase = PHASE_INIT;
    sys(NR_close_range, SLOT_LEASH, SLOT_DOOR - 1, 0);
    for (; pc < plan->n_ops; pc++) {
        if (plan_ops(plan)[pc].code == OP_SPAWN) spawn(plan, pc);
        int error = step(plan, pc);
        if (error) fail(plan, pc, error);
    }
    die(1);
}

static void run_init_at(void *argument) {
    struct place *init = argument;
    stamp(init->plan, init->pc - 1);
    run_init(init->plan, init->pc);
}

static void move_fd(int fd, int to) {
    if (fd < 0 || fd == to) return;
    sys(NR_dup3, fd, to, O_CLOEXEC_);
    sys(NR_close, fd);
}

static int out_of_the_way(int fd) {
    if (fd < 0) return fd;
    sysret copy = sys(NR_fcntl, fd, FCNTL_DUPFD_CLOEXEC, SLOT_ROOT + 1);
    sys(NR_close, fd);
    return (int)copy;
}

/* An init whose PID namespace is to lie below one that the keeper is not in. A new PID namespace lies below that of the process that makes it, and setns(2) changes
 * only where children are born, pid_namespaces(7). So two processes go ahead, on the keeper's memory and descriptors: the child of the first is born there, and
 * makes init. All three are the keeper's children (CLONE_PARENT). */
struct below {
    struct clone_args *args;
    struct place init;
    const int *pair;
    int namespace;
    sysret second, result;
};

static void begin_init(struct place init, const int *pair) {
    stamp(init.plan, init.pc - 1);
    move_fd(pair[1], SLOT_DOOR);
    if (pair[0] >= 0) sys(NR_close, pair[0]);
    run_init(init.plan, init.pc);
}

static sysret go_ahead(uint64_t flags, uint64_t signal, char *stack, void (*fn)(void *), struct below *way) {
    struct clone_args args = {
        .flags = flags | CLONE_VM_ | CLONE_VFORK_ | CLONE_FILES_,
        .exit_signal = signal,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof way_stacks[0],
    };
    return clone_call(&args, fn, way);
}

static void make_init(void *argument) {
    struct below *way = argument;
    way->result = sys(NR_clone3, way->args, sizeof *way->args);
    if (way->result == 0) begin_init(way->init, way->pair); /* on memory of its own */
    die(0);
}

static void enter_above(void *argument) {
    struct below *way = argument;
    way->result = sys(NR_setns, way->namespace, 0x20000000 /* NEWPID */);
    if (way->result >= 0) way->second = go_ahead(CLONE_PARENT_, 0, way_stacks[1], make_init, way);
    if (way->second < 0) way->result = way->second;
    die(0);
}

/* init's pid, or a negative errno. */
static sysret clone_below(struct clone_args *args, struct place init, const int *pair, int namespace) {
    struct below way = {args, init, pair, namespace, 0, 0};
    args->flags = (args->flags & ~(uint64_t)CLONE_PARENT_SETTID_) | CLONE_PARENT_; /* its number there says nothing here */
    args->exit_signal = 0; /* that of who makes it, clone(2) */
    sysret first = go_ahead(0, SIG_CHLD, way_stacks[0], enter_above, &way);
    if (first < 0) return first;
    sys(NR_wait4, first, 0, 0x40000000 /* __WALL */, 0);
    if (way.second > 0) sys(NR_wait4, way.second, 0, 0x40000000, 0);
    return way.result < 0 ? way.result : pid_behind(*(int *)(uintptr_t)args->pidfd);
}

/* The keeper goes one way, init the other. What enters has nothing of its own to hide from its keeper, and no other program ever runs in either: the two share
 * their memory (CLONE_VM), which spares a copy. */
static void split(struct plan_header *plan, uint32_t pc) {
    const struct plan_op *op = &plan_ops(plan)[pc];
    int pidfd = -1;
    struct clone_args args = {
        .flags = op->x | CLONE_PIDFD_ | CLONE_PARENT_SETTID_ | (op->in >= 0 ? CLONE_INTO_CGROUP_ : 0),
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .parent_tid = (uint64_t)(uintptr_t)&plan->init_pid,
        .exit_signal = SIG_CHLD,
        .cgroup = op->in >= 0 ? (uint64_t)op->in : 0,
    };
    struct place init = {plan, pc + 1};
    int pair[2], enters = plan->flags & PLAN_ENTER;
    plan->pc = (int32_t)pc;
    door_pair(pair);
    if (enters) {
        args.flags |= CLONE_VM_;
        args.stack = (uint64_t)(uintptr_t)init_stack;
        args.stack_size = sizeof init_stack;
    }
    sysret pid = op->out >= 0 ? clone_below(&args, init, pair, op->out) : enters ? clone_call(&args, run_init_at, &init) : sys(NR_clone3, &args, sizeof args);
    if (pid < 0) fail(plan, pc, (int)-pid);
    if (pid == 0) begin_init(init, pair);
    if (op->out >= 0) plan->init_pid = (int)pid;
    if (pair[1] >= 0) sys(NR_close, pair[1]);
    int init_fd = out_of_the_way(pidfd), handover = out_of_the_way(pair[0]); /* each may lie where the other belongs */
    move_fd(init_fd, SLOT_INIT);
    move_fd(handover, SLOT_LOG);
    /* What belongs to the program must not be kept open here, or nobody would ever read an end of file. */
    sys(NR_close_range, 0, 2, 0);
    sys(NR_close_range, SLOT_FREE, ~0u, 0);
    move_fd(handover < 0 ? -1 : SLOT_LOG, SLOT_HANDOVER);
    keeper_run(plan, (int)pid);
}

/* Started on a pipe instead of a plan: keep a new user namespace alive until the other end closes, while the starter writes its id maps. */
static void hold(void) {
    char byte;
    while (sys(NR_read, SLOT_PLAN, &byte, 1) == -E_INTR) {}
    die(0);
}

/* The plan in SLOT_PLAN, from its first operation on. */
static void __attribute__((noreturn)) carry_out(void) {
    struct facts given = {0};
    int bad_op = -1;
    stay_here();
    if (facts_of(SLOT_PLAN, &given) < 0) die(2);
    if (given.type == TYPE_PIPE) hold();
    dumpable(0); /* in no process of a sandbox's start is there anything that a program inside, or one that shares the host's processes, should find */
    sysret map = sys(NR_mmap, 0, given.size, 3 /* RW */, 1 /* SHARED */, SLOT_PLAN, 0);
    if (map < 0 && map > -4096) die(2);
    struct plan_header *plan = (struct plan_header *)map;
    if (plan_validate(plan, given.size, &bad_op) < 0 || plan->flags & PLAN_TAKE) {
        report(REPORT_FAILED, (uint16_t)bad_op, E_INVAL, 1);
        die(2);
    }
    plan->phase = PHASE_KEEPER;
    plan->started_ns = now_ns(0 /* REALTIME */);
    if (plan->flags & PLAN_RESTARTS) {
        int error = restarter_begin(plan);
        if (error) fail(plan, 0, -error);
    }
    for (uint32_t pc = 0; pc < plan->n_ops; pc++) {
        if (plan_ops(plan)[pc].code == OP_CLONE) split(plan, pc);
        int error = step(plan, pc);
        if (error) fail(plan, pc, error);
    }
    report(REPORT_STATUS, 0, 0, 0);
    die(0);
}

enum { MADV_DONTNEED = 4, DEEPEST = 65536, OUR_OWN = 512 /* below its address */ };

void forget_program_stack(void) {
    sys(NR_madvise, program_stack, sizeof program_stack, MADV_DONTNEED);
}

__attribute__((noinline)) void forget_below(void) {
    uintptr_t here = ((uintptr_t)__builtin_frame_address(0) - OUR_OWN) & ~(uintptr_t)(PAGE - 1);
    sys(NR_madvise, here - DEEPEST, DEEPEST, MADV_DONTNEED);
}

void retitle(const char *word) {
    if (str_length(title) > 8) memcpy(title, word, 8);
}

/* A child of the keeper must not be taken for it: that is found by its command line. */
void become_entering(void) {
    retitle("entering");
    sys(NR_prctl, 15 /* NAME */, "dockless-enter", 0, 0, 0);
}

void enter(void) {
    carry_out();
}

static __attribute__((used)) void launcher_main(long *stack) {
    uint64_t all = ~0ull;
    sys(NR_rt_sigprocmask, 2, &all, 0, 8);
    default_signals();
    sys(NR_umask, 0); /* the plan says each mode */
    sys(NR_chdir, "/"); /* the directory of whoever starts a sandbox is no business of its keeper's, or of what enters */
    title = (char *)stack[1];
    sys(NR_prctl, 15 /* NAME */, "dockless-keeper", 0, 0, 0);
    carry_out();
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall launcher_main\n\tud2\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x0, sp\n\tbl launcher_main\n\tbrk 1\n");
#endif
