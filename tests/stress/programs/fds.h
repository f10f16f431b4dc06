/* SPDX-License-Identifier: Apache-2.0 */
/* fds.h - descriptors in sockets and in epoll sets. */
#ifndef STRESS_FDS_H
#define STRESS_FDS_H

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Sends a descriptor. Returns 0, or -1 with errno. */
static inline int send_fd(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	return sendmsg(socket, &m, 0) == 1 ? 0 : -1;
}

/* The descriptor that send_fd sent; -1: none has come. */
static inline int receive_fd(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof control};
	int fd;

	if (recvmsg(socket, &m, 0) != 1 || !CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

/* The number of files in an epoll set; -1: the kernel does not report it. */
static inline int epoll_entries(int set)
{
	char line[256];
	int n = 0;
	FILE *f;

	snprintf(line, sizeof line, "/proc/self/fdinfo/%d", set);
	f = fopen(line, "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof line, f))
		n += strncmp(line, "tfd:", 4) == 0;
	fclose(f);
	return n;
}

#endif
