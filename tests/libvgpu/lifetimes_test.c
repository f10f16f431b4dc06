/* SPDX-License-Identifier: Apache-2.0 */
/* lifetimes_test.c - what the allocations of a graph hold at once. */
#include "../../libvgpu/memory/lifetimes.h"

#include <stdbool.h>

#include "check.h"

#define MAX_NODES 24

static uint64_t held(const struct vgpu_life *l, size_t n, const struct vgpu_edge *e, size_t edges,
		     size_t nodes)
{
	return vgpu_held_at_once(l, n, e, edges, nodes);
}

static void known_graphs(void)
{
	/* make 5, free, make 3, free, make 7: one after another */
	struct vgpu_life turn[] = {{0, 1, 5}, {2, 3, 3}, {4, VGPU_NEVER, 7}};
	struct vgpu_edge chain[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};
	/* the same without order */
	struct vgpu_edge pairs[] = {{0, 1}, {2, 3}};
	/* two at once, then one after both: it can have the memory of the larger */
	struct vgpu_life join[] = {{0, 2, 5}, {1, 3, 3}, {4, VGPU_NEVER, 7}};
	struct vgpu_edge both[] = {{0, 2}, {1, 3}, {2, 4}, {3, 4}};
	/* a circle is no graph of CUDA's */
	struct vgpu_edge circle[] = {{0, 1}, {1, 2}, {2, 0}, {3, 4}};
	struct vgpu_edge beyond[] = {{0, 9}};

	CHECK_EQ(held(turn, 3, chain, 4, 5), 7);
	CHECK_EQ(held(turn, 3, pairs, 2, 5), 15);
	CHECK_EQ(held(join, 3, both, 4, 5), 10);
	CHECK_EQ(held(turn, 3, circle, 4, 5), 15);
	CHECK_EQ(held(turn, 3, beyond, 1, 5), 15);
	CHECK_EQ(held(turn, 1, NULL, 0, 5), 5);
	CHECK_EQ(held(NULL, 0, NULL, 0, 5), 0);
	turn[0].freed = VGPU_NEVER;
	CHECK_EQ(held(turn, 3, chain, 4, 5), 12);
	turn[2].born = 0; /* two of one node */
	CHECK_EQ(held(turn, 3, chain, 4, 5), 15);
}

/* Whatever order the card chooses among those that a graph allows, no more is held. */
static void random_orders(void)
{
	for (unsigned seed = 1; seed <= 2000; seed++) {
		struct vgpu_life life[MAX_NODES];
		struct vgpu_edge edge[MAX_NODES * MAX_NODES];
		size_t nodes, lives, edges = 0;
		uint64_t most, sum = 0;

		srand(seed);
		nodes = 2 + (size_t)rand() % (MAX_NODES - 1);
		lives = nodes / 2;
		for (size_t i = 0; i < lives; i++) {
			life[i] = (struct vgpu_life){(uint32_t)(2 * i), (uint32_t)(2 * i + 1),
						     1 + (uint64_t)rand() % 100};
			edge[edges++] = (struct vgpu_edge){life[i].born, life[i].freed};
			sum += life[i].bytes;
		}
		for (uint32_t a = 0; a < nodes; a++)
			for (uint32_t b = a + 1; b < nodes; b++)
				if (rand() % 8 == 0 && !(a % 2 == 0 && b == a + 1))
					edge[edges++] = (struct vgpu_edge){a, b};
		most = held(life, lives, edge, edges, nodes);
		CHECK(most <= sum);
		for (int run = 0; run < 20; run++) {
			bool ran[MAX_NODES] = {false};
			uint64_t now = 0;

			for (size_t n = 0; n < nodes; n++) {
				uint32_t can[MAX_NODES], next, k = 0;

				for (uint32_t v = 0; v < nodes; v++) {
					bool waits = ran[v];

					for (size_t e = 0; e < edges; e++)
						waits |= edge[e].to == v && !ran[edge[e].from];
					if (!waits)
						can[k++] = v;
				}
				next = can[(uint32_t)rand() % k];
				ran[next] = true;
				if (next / 2 < lives)
					now += next % 2 ? -life[next / 2].bytes
							: life[next / 2].bytes;
				CHECK(now <= most);
			}
		}
	}
}

int main(void)
{
	known_graphs();
	random_orders();
	return done("lifetimes");
}
