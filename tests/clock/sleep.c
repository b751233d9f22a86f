/* Debian's libfaketime answers EINVAL to a sleep until a moment of a clock that it leaves alone, which is how
   Python sleeps from 3.11 on. Loaded before it, this asks the kernel instead. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *rest)
{
    return syscall(SYS_clock_nanosleep, clock, flags, until, rest) ? errno : 0;
}
