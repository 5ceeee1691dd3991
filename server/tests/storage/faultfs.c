// SPDX-License-Identifier: AGPL-3.0-only
//
// A disk that fails on demand, preloaded into a child process of the tests.
//
//   FAULT_MATCH   faults strike files whose path ends with this
//   FAULT_ARMED   faults strike while this file exists; its first byte says how:
//                   f  fsync and fdatasync fail with EIO
//                   d  fsync and fdatasync take until the file is gone
//                   c  the same, once the file CURRENT of a store was replaced
//                   w  writes fail with ENOSPC, and the volume has no space left
//                   s  the same, after one write that took half of what it was given
//   FAULT_QUOTA   "bytes:directory": the files of the directory may take so much of the disk;
//                 more fails with ENOSPC, and the volume says what is left
//   FAULT_SYNCED  a line "inode size" is appended to this file after every fsync that succeeds, so
//                 that a test can cut each file to what power loss would have left of it; with size
//                 0 before a file is deleted, since another one may get its inode

#define _GNU_SOURCE
#include <dirent.h>
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
static int (*real_fallocate)(int, int, off_t, off_t);
static int (*real_posix_fallocate)(int, off_t, off_t);
static int (*real_unlink)(const char *);
static int (*real_rename)(const char *, const char *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static const char *match, *armed;
static const char *quota_directory;
static long long quota;
static int synced = -1;
static int halved;
static volatile int current_replaced;

__attribute__((constructor)) static void start(void) {
  real_write = dlsym(RTLD_NEXT, "write");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite");
  real_statvfs = dlsym(RTLD_NEXT, "statvfs");
  real_fallocate = dlsym(RTLD_NEXT, "fallocate");
  real_posix_fallocate = dlsym(RTLD_NEXT, "posix_fallocate");
  real_unlink = dlsym(RTLD_NEXT, "unlink");
  real_rename = dlsym(RTLD_NEXT, "rename");
  real_fsync = dlsym(RTLD_NEXT, "fsync");
  real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
  match = getenv("FAULT_MATCH");
  armed = getenv("FAULT_ARMED");
  if (getenv("FAULT_QUOTA")) {
    quota = atoll(getenv("FAULT_QUOTA"));
    quota_directory = strchr(getenv("FAULT_QUOTA"), ':') + 1;
  }
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

// What the quota leaves, as the disk counts: blocks set aside beforehand are taken, too.
static long long left(void) {
  DIR *directory = opendir(quota_directory);
  if (!directory) return quota;
  long long used = 0;
  struct stat status;
  for (struct dirent *entry; (entry = readdir(directory));)
    if (fstatat(dirfd(directory), entry->d_name, &status, 0) == 0 && S_ISREG(status.st_mode))
      used += status.st_blocks * 512LL;
  closedir(directory);
  return used < quota ? quota - used : 0;
}

// Whether this write would exceed the quota. A file that has the blocks already needs no more.
static int exceeds(int fd, off_t end) {
  char link[64], path[4096];
  struct stat status;
  if (!quota || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  size_t prefix = strlen(quota_directory);
  if (length <= (ssize_t)prefix || strncmp(path, quota_directory, prefix) != 0) return 0;
  long long more = end - status.st_blocks * 512LL;
  return more > 0 && more > left();
}

static void note_synced(const struct stat *file, long long size) {
  char line[64];
  int length = snprintf(line, sizeof line, "%llu %lld\n", (unsigned long long)file->st_ino, size);
  real_write(synced, line, (size_t)length);
}

static int sync_with(int (*real)(int), int fd) {
  char kind = fault(fd);
  if (kind == 'f') {
    errno = EIO;
    return -1;
  }
  int waits = kind == 'd' || (kind == 'c' && current_replaced);
  while (waits && armed_fault() == kind) usleep(10000);
  struct stat before;
  fstat(fd, &before);  // What is written while the call runs is not promised.
  int result = real(fd);
  if (result == 0 && synced >= 0) note_synced(&before, (long long)before.st_size);
  return result;
}

int unlink(const char *path) {
  struct stat file;
  // Before it happens: another thread's file may get the inode, and be synced, before this one goes on.
  if (synced >= 0 && stat(path, &file) == 0) note_synced(&file, 0);
  return real_unlink(path);
}

int rename(const char *from, const char *to) {
  const char *name = strrchr(to, '/');
  // Before it happens: another thread may see it, and sync the directory, before this one goes on.
  if (name && strcmp(name, "/CURRENT") == 0 && armed_fault() == 'c') current_replaced = 1;
  return real_rename(from, to);
}

int fsync(int fd) { return sync_with(real_fsync, fd); }

int fdatasync(int fd) { return sync_with(real_fdatasync, fd); }

ssize_t write(int fd, const void *data, size_t size) {
  char kind = fault(fd);
  if (kind == 's' && !halved && size > 1) {
    halved = 1;
    return real_write(fd, data, size / 2);
  }
  struct stat status;
  int is_full = quota && fstat(fd, &status) == 0 && exceeds(fd, status.st_size + (off_t)size);
  if (kind == 'w' || kind == 's' || is_full) {
    errno = ENOSPC;
    return -1;
  }
  return real_write(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
  char kind = fault(fd);
  if (kind == 'w' || kind == 's' || exceeds(fd, offset + (off_t)size)) {
    errno = ENOSPC;
    return -1;
  }
  return real_pwrite(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (exceeds(fd, offset + size)) {
    errno = ENOSPC;
    return -1;
  }
  return real_fallocate(fd, mode, offset, size);
}

int fallocate64(int fd, int mode, off_t offset, off_t size) {
  return fallocate(fd, mode, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size) {
  return exceeds(fd, offset + size) ? ENOSPC : real_posix_fallocate(fd, offset, size);
}

int posix_fallocate64(int fd, off_t offset, off_t size) {
  return posix_fallocate(fd, offset, size);
}

// RocksDB asks before it tries again, and the broker asks every second.
int statvfs(const char *path, struct statvfs *volume) {
  int result = real_statvfs(path, volume);
  char kind = armed_fault();
  if (kind == 'w' || kind == 's') volume->f_bfree = volume->f_bavail = 0;
  if (quota && strncmp(path, quota_directory, strlen(quota_directory)) == 0) {
    volume->f_blocks = (fsblkcnt_t)(quota / (long long)volume->f_frsize);
    volume->f_bfree = volume->f_bavail = (fsblkcnt_t)(left() / (long long)volume->f_frsize);
  }
  return result;
}

// The name under which a program calls it that was built for large files, as Python is.
int statvfs64(const char *path, struct statvfs64 *volume) {
  return statvfs(path, (struct statvfs *)volume);
}
