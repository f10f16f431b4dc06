// SPDX-License-Identifier: Apache-2.0

package libvgpu

/*
#include <stdlib.h>
#include <string.h>
#include "config.h"

struct listed {
	struct vgpu_env env; // first: a pointer to it is one to the whole
	char **vars;         // NAME=value, ended by NULL
	unsigned bad;
};

static const char *listed_get(struct vgpu_env *env, const char *name)
{
	size_t length = strlen(name);

	for (char **v = ((struct listed *)env)->vars; *v; v++)
		if (strncmp(*v, name, length) == 0 && (*v)[length] == '=')
			return *v + length + 1;
	return NULL;
}

static void listed_bad(struct vgpu_env *env, const char *name, const char *value, const char *want)
{
	((struct listed *)env)->bad++;
}

static bool grant_from_list(struct vgpu_grant *g, char **vars, unsigned *bad)
{
	struct listed l = {{listed_get, listed_bad}, vars, 0};
	bool any = vgpu_grant_from(g, &l.env);

	*bad = l.bad;
	return any;
}
*/
import "C"

import "unsafe"

// The limits that the preload library gives to a value that it cannot read.
const (
	smallestMem   = C.VGPU_SMALLEST_MEM
	smallestCores = C.VGPU_SMALLEST_CORES
	memOfCard     = C.VGPU_MEM_OF_CARD // to be learned from the card
)

// parseSize is the preload library's reader of sizes. It is here, as envGrant
// is, for the tests, since a test file cannot hold cgo.
func parseSize(s string) (uint64, bool) {
	text := C.CString(s)
	defer C.free(unsafe.Pointer(text))
	var bytes C.uint64_t
	ok := bool(C.vgpu_parse_size(text, &bytes))
	return uint64(bytes), ok
}

// envGrant returns the cards that the preload library makes of environment
// variables ("NAME=value"), how many values it could not read, and whether any
// limit is set.
func envGrant(vars []string) (cards []GrantCard, bad int, limited bool) {
	memory := C.calloc(C.size_t(len(vars)+1), C.size_t(unsafe.Sizeof((*C.char)(nil))))
	defer C.free(memory)
	list := unsafe.Slice((**C.char)(memory), len(vars)+1)
	for i, v := range vars {
		list[i] = C.CString(v)
		defer C.free(unsafe.Pointer(list[i]))
	}
	var g C.struct_vgpu_grant
	var count C.unsigned
	limited = bool(C.grant_from_list(&g, &list[0], &count))
	for i := range int(g.ncards) {
		c := &g.card[i]
		cards = append(cards, GrantCard{
			MemLimit: uint64(c.mem_limit), MemPhysical: uint64(c.mem_physical), Share: uint32(c.share), Cores: uint32(c.cores),
			Mode: uint32(c.mode), Priority: uint32(c.priority),
		})
	}
	return cards, int(count), limited
}
