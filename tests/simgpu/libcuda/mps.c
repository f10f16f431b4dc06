// SPDX-License-Identifier: Apache-2.0
/* mps.c - clients of an MPS server. A program becomes one where CUDA finds a control daemon, and
 * goes on without where it finds none. The daemon is tests/mps/fake. */
#define _GNU_SOURCE
#include "local.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int mps_server(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY"), ask[] = "client\n";
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	char answer[64];
	ssize_t n = -1;
	int fd;

	if (!dir || (size_t)snprintf(to.sun_path, sizeof(to.sun_path), "%s/control", dir) >=
			    sizeof(to.sun_path))
		return 0;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
	    send(fd, ask, strlen(ask), MSG_NOSIGNAL) == (ssize_t)strlen(ask))
		n = read(fd, answer, sizeof(answer) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	answer[n] = 0;
	return atoi(answer);
}

bool mps_gone(void)
{
	return drv.server && kill(drv.server, 0) != 0 && errno == ESRCH;
}
