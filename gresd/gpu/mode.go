// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"slices"
	"strings"
)

// Mode says how a job's compute share is held.
type Mode string

// Modes. Memory is always hard.
const (
	Hard Mode = "hard" // never more than the share
	Soft Mode = "soft" // at least the share, and the idle time of others
	Off  Mode = "off"  // counted, never held back; only where the site allows it
)

// Priority orders jobs that compete for one card.
type Priority string

// Priorities.
const (
	High   Priority = "high"
	Normal Priority = "normal"
	Low    Priority = "low"
)

// Priorities returns every priority.
func Priorities() []Priority { return []Priority{High, Normal, Low} }

// Policy says which cards are preferred when gresd chooses them.
type Policy string

// Policies.
const (
	Binpack  Policy = "binpack"  // fill cards that are in use
	Spread   Policy = "spread"   // prefer the emptiest card
	Topology Policy = "topology" // prefer cards that are near each other
	// Exclusive: cards without other jobs, as long as the job runs. It takes a
	// whole card of slurmctld's count, whatever the share is.
	Exclusive Policy = "exclusive"
)

// Policies returns every policy.
func Policies() []Policy { return []Policy{Binpack, Spread, Topology, Exclusive} }

// Engine is what divides the compute of a card between jobs.
type Engine string

// Engines. All jobs of a card have the same one. The multiprocessors that a job
// may use with MPS are fixed when a program starts.
const (
	Time Engine = "time" // the card's time, by the arbiter
	MPS  Engine = "mps"  // the card's multiprocessors, by NVIDIA's Multi-Process Service
	// Concurrent: one server of that service runs the work of all jobs side by side, and
	// the arbiter keeps their shares of the work.
	Concurrent Engine = "concurrent"
	// Auto, of a request, leaves it to gresd: Concurrent beside jobs of trusted users, else Time.
	Auto Engine = "auto"
)

// ParseMode reads "hard", "soft", "soft:CEILING" or "off". The ceiling is 0
// where there is none; "soft:100" has none. The error is a [*ValueError].
func ParseMode(s string) (Mode, Share, error) {
	name, ceiling, found := strings.Cut(s, ":")
	const want = "want hard, soft, soft:CEILING or off"
	switch m := Mode(name); {
	case m == Soft && found:
		n, err := ParsePercent(ceiling)
		if err != nil {
			return "", 0, &ValueError{s, "want a ceiling from 1 to 100", "soft:80"}
		}
		if n == 100 {
			n = 0
		}
		return m, Share(n), nil
	case (m == Hard || m == Off) && found:
		return "", 0, &ValueError{s, "only soft has a ceiling", "soft:80"}
	case m == Hard || m == Soft || m == Off:
		return m, 0, nil
	}
	return "", 0, &ValueError{s, want, "soft:80"}
}

// FormatMode is the inverse of [ParseMode].
func FormatMode(m Mode, ceiling Share) string {
	if m == Soft && ceiling != 0 {
		return fmt.Sprintf("%s:%d", m, ceiling)
	}
	return string(m)
}

// ParsePriority reads "high", "normal" or "low". The error is a [*ValueError].
func ParsePriority(s string) (Priority, error) {
	return oneOf(s, Priorities(), "want high, normal or low", Normal)
}

// ParsePolicy reads "binpack", "spread", "topology" or "exclusive". The error is
// a [*ValueError].
func ParsePolicy(s string) (Policy, error) {
	return oneOf(s, Policies(), "want binpack, spread, topology or exclusive", Binpack)
}

// ParseEngine reads "time", "mps", "concurrent" or "auto". The error is a [*ValueError].
func ParseEngine(s string) (Engine, error) {
	return oneOf(s, []Engine{Time, MPS, Concurrent, Auto}, "want time, mps, concurrent or auto", Time)
}

func oneOf[T ~string](s string, all []T, want string, example T) (T, error) {
	if slices.Contains(all, T(s)) {
		return T(s), nil
	}
	return "", &ValueError{s, want, string(example)}
}
