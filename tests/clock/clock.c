/* Loaded before a program: its wall clock is OFFSET seconds ahead, and so are the times of files. The clock that only
   counts up stays as it is. Debian's libfaketime would do, but it answers EINVAL to the way in which Python sleeps from
   3.11 on, and reads the environment at each call while other threads change it: the tests crashed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define IS_WALL(clock) ((clock) == CLOCK_REALTIME || (clock) == CLOCK_REALTIME_COARSE)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = REAL(clock_gettime);
    int code = real(clock, now);
    if (!code && IS_WALL(clock))
        now->tv_sec += OFFSET;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

/* ------------------------------------------------------------------------------------------- waits until a time */

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec mono, moved = *until;
    if (!real)
        real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    clock_gettime(CLOCK_MONOTONIC, &mono);
    if (until->tv_sec > mono.tv_sec + 100000000) /* of the wall clock: the other one counts from the last start */
        moved.tv_sec -= OFFSET;
    return real(condition, mutex, &moved);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    struct timespec moved = *until;
    moved.tv_sec -= OFFSET;
    return REAL(sem_timedwait)(semaphore, &moved);
}

/* ---------------------------------------------------------------------------------------------- times of files */

static int shifted(int code, struct stat *found)
{
    if (!code) {
        found->st_atim.tv_sec += OFFSET;
        found->st_mtim.tv_sec += OFFSET;
        found->st_ctim.tv_sec += OFFSET;
    }
    return code;
}

int stat(const char *path, struct stat *found) { return shifted(REAL(stat)(path, found), found); }
int lstat(const char *path, struct stat *found) { return shifted(REAL(lstat)(path, found), found); }
int fstat(int file, struct stat *found) { return shifted(REAL(fstat)(file, found), found); }
int fstatat(int folder, const char *path, struct stat *found, int flags)
{
    return shifted(REAL(fstatat)(folder, path, found, flags), found);
}

/* The same on machines of 64 bits. */
int stat64(const char *path, struct stat64 *found) { return stat(path, (struct stat *)found); }
int lstat64(const char *path, struct stat64 *found) { return lstat(path, (struct stat *)found); }
int fstat64(int file, struct stat64 *found) { return fstat(file, (struct stat *)found); }
int fstatat64(int folder, const char *path, struct stat64 *found, int flags)
{
    return fstatat(folder, path, (struct stat *)found, flags);
}

int statx(int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict found)
{
    int code = REAL(statx)(folder, path, flags, mask, found);
    if (!code) {
        found->stx_atime.tv_sec += OFFSET;
        found->stx_mtime.tv_sec += OFFSET;
        found->stx_ctime.tv_sec += OFFSET;
        found->stx_btime.tv_sec += OFFSET;
    }
    return code;
}

static const struct timespec *unshifted(const struct timespec times[2], struct timespec moved[2])
{
    if (!times)
        return times;
    for (int i = 0; i < 2; i++) {
        moved[i] = times[i];
        if (times[i].tv_nsec != UTIME_NOW && times[i].tv_nsec != UTIME_OMIT)
            moved[i].tv_sec -= OFFSET;
    }
    return moved;
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags)
{
    struct timespec moved[2];
    return REAL(utimensat)(folder, path, unshifted(times, moved), flags);
}

int futimens(int file, const struct timespec times[2])
{
    struct timespec moved[2];
    return REAL(futimens)(file, unshifted(times, moved));
}
