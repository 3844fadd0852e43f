// SPDX-License-Identifier: Apache-2.0
// Listens at an abstract name, prints "ready", and ends when stdin does: listener NAME
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  size_t n = argc == 2 ? strlen(argv[1]) : sizeof name.sun_path;
  char c;

  if (n > sizeof name.sun_path - 1) return 2;
  memcpy(name.sun_path + 1, argv[1], n);
  if (bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) != 0 || listen(fd, 8) != 0) {
    perror("listener");
    return 1;
  }
  puts("ready");
  fflush(stdout);
  while (read(STDIN_FILENO, &c, 1) > 0) continue;
  return 0;
}
