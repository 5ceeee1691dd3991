// SPDX-License-Identifier: AGPL-3.0-only
//
// A disk that fails on demand, preloaded into a child process of the tests.
//
//   FAULT_MATCH   faults strike files whose path ends with this
//   FAULT_ARMED   faults strike while this file exists; its first byte says how:
//                   f  fsync and fdatasync fail with EIO
//                   d  fsync and fdatasync take until the file is gone
//                   w  writes fail with ENOSPC, and the volume has no space left
//                   s  the same, after one write that took half of what it was given
//   FAULT_SYNCED  a line "inode size" is appended to this file after every fsync that succeeds, so
//                 that a test can cut each file to what power loss would have left of it

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_statvfs)(const char *, struct statvfs *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static const char *match, *armed;
static int synced = -1;
static int halved;

__attribute__((constructor)) static void start(void) {
  real_write = dlsym(RTLD_NEXT, "write");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite");
  real_statvfs = dlsym(RTLD_NEXT, "statvfs");
  real_fsync = dlsym(RTLD_NEXT, "fsync");
  real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
  match = getenv("FAULT_MATCH");
  armed = getenv("FAULT_ARMED");
  if (getenv("FAULT_SYNCED"))
    synced = open(getenv("FAULT_SYNCED"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

// The fault that is armed, or 0.
static char armed_fault(void) {
  char kind = 0;
  int control = armed ? open(armed, O_RDONLY | O_CLOEXEC) : -1;
  if (control < 0) return 0;
  if (read(control, &kind, 1) != 1) kind = 0;
  close(control);
  return kind;
}

// The fault that strikes this file now, or 0.
static char fault(int fd) {
  char link[64], path[4096];
  if (!match) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < (ssize_t)strlen(match)) return 0;
  path[length] = 0;
  if (strcmp(path + length - strlen(match), match) != 0) return 0;
  return armed_fault();
}

static int sync_with(int (*real)(int), int fd) {
  char kind = fault(fd);
  if (kind == 'f') {
    errno = EIO;
    return -1;
  }
  while (kind == 'd' && armed_fault() == 'd') usleep(10000);
  struct stat before;
  fstat(fd, &before);  // What is written while the call runs is not promised.
  int result = real(fd);
  if (result == 0 && synced >= 0) {
    char line[64];
    int length = snprintf(line, sizeof line, "%llu %lld\n", (unsigned long long)before.st_ino,
                          (long long)before.st_size);
    real_write(synced, line, (size_t)length);
  }
  return result;
}

int fsync(int fd) { return sync_with(real_fsync, fd); }

int fdatasync(int fd) { return sync_with(real_fdatasync, fd); }

ssize_t write(int fd, const void *data, size_t size) {
  char kind = fault(fd);
  if (kind == 's' && !halved && size > 1) {
    halved = 1;
    return real_write(fd, data, size / 2);
  }
  if (kind == 'w' || kind == 's') {
    errno = ENOSPC;
    return -1;
  }
  return real_write(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
  char kind = fault(fd);
  if (kind == 'w' || kind == 's') {
    errno = ENOSPC;
    return -1;
  }
  return real_pwrite(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}

// RocksDB asks before it tries again, and the broker asks every second.
int statvfs(const char *path, struct statvfs *volume) {
  int result = real_statvfs(path, volume);
  char kind = armed_fault();
  if (kind == 'w' || kind == 's') volume->f_bfree = volume->f_bavail = 0;
  return result;
}

// The name under which a program calls it that was built for large files, as Python is.
int statvfs64(const char *path, struct statvfs64 *volume) {
  return statvfs(path, (struct statvfs *)volume);
}
