/* SPDX-License-Identifier: Apache-2.0 */
/* credit_test.c - corrections of the budget (vgpu_budget_credit). */
#include <pthread.h>

#include "../../libvgpu/region_ops.h"
#include "check.h"

static struct vgpu_cache_header credit_header;

static void *credit_thread(void *of)
{
	for (int i = 0; i < 1000; i++)
		vgpu_budget_credit(of, &credit_header, 1, 5000000);
	return NULL;
}

/* Each correction reaches the balance once, when the balance has room. */
int main(void)
{
	struct vgpu_cache_header *h = &credit_header;
	struct vgpu_budget *b = &h->budget[1];
	struct vgpu_grant g = {.ncards = 2};
	pthread_t t[4];

	g.card[1].credit_ns = 7000000;
	vgpu_budget_credit(&g, h, 1, 5000000);
	CHECK_EQ(b->balance_ns, 5000000);
	vgpu_budget_credit(&g, h, 1, 5000000);
	CHECK_EQ(b->balance_ns, 5000000);
	b->balance_ns = 4000000; /* the rest was not lost */
	vgpu_budget_credit(&g, h, 1, 5000000);
	vgpu_budget_refill(b, 1000, 20, 5000000);
	b->balance_ns = -1000;
	vgpu_budget_credit(&g, h, 1, 5000000);
	CHECK_EQ(b->balance_ns, 999000);
	CHECK_EQ(h->credited_us[1], 7000);
	/* The job pays at once for time that was charged too little. */
	g.card[1].credit_ns -= 60000000;
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, credit_thread, &g);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK_EQ(b->balance_ns, 999000 - 60000000);
	/* The sum exceeds 32 bits of microseconds. */
	g.card[1].credit_ns = 4294967296000 + 1000;
	h->credited_us[1] = 0xffffffff;
	b->balance_ns = 0;
	vgpu_budget_credit(&g, h, 1, 5000000);
	CHECK_EQ(b->balance_ns, 2000);
	/* The job wrote that balance. */
	b->balance_ns = INT64_MIN;
	g.card[1].credit_ns += 1000;
	vgpu_budget_credit(&g, h, 1, 5000000);
	CHECK_EQ(b->balance_ns, INT64_MIN + 1000);
	/* A new cache begins with the sum of an old grant. */
	vgpu_cache_init(h, &g);
	vgpu_budget_credit(&g, h, 1, 5000000);
	CHECK_EQ(b->balance_ns, INT64_MIN + 1000);
	CHECK_EQ(b[-1].balance_ns, 0);
	return done("credit");
}
