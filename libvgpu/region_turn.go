// SPDX-License-Identifier: Apache-2.0

package libvgpu

// #include "region.h"
import "C"

import (
	"fmt"
	"unsafe"
)

const (
	turnSize   = C.sizeof_struct_vgpu_turn_state
	turnOffset = C.VGPU_CACHE_OFFSET + int64(unsafe.Offsetof(C.struct_vgpu_cache_header{}.turn))
)

// TurnState is what the processes of a job say together of its turns on one
// card, in nanoseconds of CLOCK_MONOTONIC. Like all of a cache it is a claim.
type TurnState struct {
	UntilNS  uint64 // when all launched work will be done, as estimated
	WantedNS uint64 // when a launch last went or waited
	// InflightNS is work that was not seen complete, whatever was estimated.
	InflightNS uint64
}

// Turn reads one card's state, and nothing else of the file: it is cheap enough
// for a thousand calls a second.
func (r *CacheReader) Turn(card int) (TurnState, error) {
	if card < 0 || card >= MaxCards {
		return TurnState{}, fmt.Errorf("read turn: card %d: want 0 to %d", card, MaxCards-1)
	}
	var buf [turnSize]byte
	if err := pread(r.fd, buf[:], turnOffset+int64(card)*turnSize); err != nil {
		return TurnState{}, fmt.Errorf("read turn %s: %w: %w", r.file.Name(), ErrNotCache, err)
	}
	t := (*C.struct_vgpu_turn_state)(unsafe.Pointer(&buf[0]))
	return TurnState{UntilNS: uint64(t.until_ns), WantedNS: uint64(t.wanted_ns), InflightNS: uint64(t.inflight_ns)}, nil
}
