// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// Names says whether a list of nodes as in slurm.conf, "gpu[01-08],login1", names that one.
func Names(list, node string) (bool, error) { return inHostlist(list, node) }

// inHostlist says whether a node is in a list as Slurm prints it:
// "n1,gpu[01-03,7],r[1-2]c[1-4]". Numbers match with the same zeros in front
// as the list has them. The list is not expanded: it may name many thousands.
func inHostlist(list, node string) (bool, error) {
	if null(list) == "" {
		return false, nil
	}
	for _, item := range splitOutside(list) {
		found, err := matches(item, node)
		if err != nil {
			return false, fmt.Errorf("cannot read node list %q: %w", clip(list), err)
		}
		if found {
			return true, nil
		}
	}
	return false, nil
}

// matches holds one item against a name.
func matches(item, name string) (bool, error) {
	prefix, rest, hasRange := strings.Cut(item, "[")
	if !hasRange {
		return item == name, nil
	}
	ranges, after, closed := strings.Cut(rest, "]")
	if !closed {
		return false, fmt.Errorf("no ] in %q", clip(item))
	}
	name, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false, nil
	}
	// The digits may run on into what follows the bracket: try each length.
	digits := len(name) - len(strings.TrimLeft(name, "0123456789"))
	for n := 1; n <= digits; n++ {
		inside, err := inRanges(ranges, name[:n])
		if err != nil {
			return false, err
		}
		if !inside {
			continue
		}
		if found, err := matches(after, name[n:]); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// inRanges says whether digits are in "01-03,7".
func inRanges(ranges, digits string) (bool, error) {
	for part := range strings.SplitSeq(ranges, ",") {
		from, to, width, err := rangeOf(part)
		if err != nil {
			return false, err
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err == nil && from <= n && n <= to && digits == padded(n, width) {
			return true, nil
		}
	}
	return false, nil
}

// rangeOf reads "01-03" or "7". Numbers are padded to the width of the first.
func rangeOf(text string) (from, to uint64, width int, err error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	from, err = strconv.ParseUint(low, 10, 64)
	to, err2 := strconv.ParseUint(high, 10, 64)
	if err != nil || err2 != nil {
		return 0, 0, 0, fmt.Errorf("no numbers in %q", clip(text))
	}
	return from, to, len(low), nil
}

func padded(n uint64, width int) string { return fmt.Sprintf("%0*d", width, n) }
