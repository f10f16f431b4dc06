// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Set is a set of numbers, of processors, cores or cards, in rising order.
type Set []int

// String writes ranges, "0-47,96-143"; "" for the empty set.
func (s Set) String() string {
	var parts []string
	for i := 0; i < len(s); {
		last := i
		for last+1 < len(s) && s[last+1] == s[last]+1 {
			last++
		}
		if last == i {
			parts = append(parts, strconv.Itoa(s[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", s[i], s[last]))
		}
		i = last + 1
	}
	return strings.Join(parts, ",")
}

// maxNumber bounds what a list can make us allocate.
const maxNumber = 1 << 16

// ParseSet reads a list as the kernel writes it, "0-47,96-143"; "" is the
// empty set, which is nil.
func ParseSet(list string) (Set, error) {
	trimmed := strings.TrimSpace(list)
	if trimmed == "" {
		return nil, nil
	}
	numbers, ok := gpu.Ranges(trimmed, maxNumber)
	if !ok {
		return nil, fmt.Errorf("list %q: want e.g. 0-47,96-143", list)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// And returns what is in both sets.
func (s Set) And(other Set) Set {
	var both Set
	for _, n := range s {
		if _, found := slices.BinarySearch(other, n); found {
			both = append(both, n)
		}
	}
	return both
}

// CPU is one processor as Linux sees it.
type CPU struct {
	ID            int // "cpu17" is 17
	Package, Core int // the core's number is unique within its package
}

// CoreMap knows which core a processor is part of, in the numbers that Slurm
// gives to cores: one socket after the other, however Linux counts. The zero
// map is empty.
type CoreMap struct {
	core map[int]int // processor → core
	size []int       // processors of each core
}

// NewCoreMap numbers the cores of a node. Packages, and the cores of a package,
// are ordered by their first processor, as hwloc does for Slurm.
func NewCoreMap(cpus []CPU) CoreMap {
	type key struct{ pack, core int }
	firstOfPackage, firstOfCore := map[int]int{}, map[key]int{}
	for _, c := range cpus {
		k := key{c.Package, c.Core}
		if first, seen := firstOfPackage[c.Package]; !seen || c.ID < first {
			firstOfPackage[c.Package] = c.ID
		}
		if first, seen := firstOfCore[k]; !seen || c.ID < first {
			firstOfCore[k] = c.ID
		}
	}
	sorted := slices.Clone(cpus)
	slices.SortFunc(sorted, func(a, b CPU) int {
		return cmp.Or(
			cmp.Compare(firstOfPackage[a.Package], firstOfPackage[b.Package]),
			cmp.Compare(firstOfCore[key{a.Package, a.Core}], firstOfCore[key{b.Package, b.Core}]),
			cmp.Compare(a.ID, b.ID))
	})
	m := CoreMap{core: map[int]int{}}
	for i, c := range sorted {
		if i == 0 || c.Package != sorted[i-1].Package || c.Core != sorted[i-1].Core {
			m.size = append(m.size, 0)
		}
		m.core[c.ID] = len(m.size) - 1
		m.size[len(m.size)-1]++
	}
	return m
}

// Len is the number of cores.
func (m CoreMap) Len() int { return len(m.size) }

// Cores returns the cores of which all processors are in the set. A processor
// that the map does not have makes the answer nil: the two do not belong together.
func (m CoreMap) Cores(cpus Set) Set {
	held := make([]int, len(m.size))
	for _, c := range cpus {
		core, known := m.core[c]
		if !known {
			return nil
		}
		held[core]++
	}
	var cores Set
	for core, n := range held {
		if n == m.size[core] {
			cores = append(cores, core)
		}
	}
	return cores
}
