// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"strconv"
	"strings"
)

// Ranges are the numbers of a list such as "0-2,5", in its order. ok is false where it is no such
// list, names a number of most or above, or more than most numbers.
func Ranges(list string, most int) (numbers []int, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 31)
		to, err2 := strconv.ParseUint(last, 10, 31)
		if err != nil || err2 != nil || from > to || int(to) >= most || len(numbers)+int(to-from) >= most {
			return nil, false
		}
		for ; from <= to; from++ {
			numbers = append(numbers, int(from))
		}
	}
	return numbers, true
}
