// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"fmt"
	"strings"
	"testing"
)

// tenMS is a card that needs 10 ms for a copy of 1 MiB.
const tenMS = oneCard + "copy_gb_per_s = 0.1048576\n"

// capped runs cap at a limit and checks which part of the card it had.
func capped(t *testing.T, config, limit string, least, most float64, more []string, args ...string) {
	t.Helper()
	env, _ := limited(t, config, limit)
	result, err := run(t, append(env, more...), "cap", args...)
	if err != nil {
		t.Fatal(err)
	}
	ofCard(t, result["part"].(float64), least, most, result["late"].(float64))
}

// A launch in which the driver waits is charged what its work takes, for that time is not the
// host's: all launches where CUDA_LAUNCH_BLOCKING is set, and copies that wait by themselves.
// What a busy machine takes to wake the host counts too, so that too little says nothing here.
func TestLaunchesThatWaitAreCharged(t *testing.T) {
	for args, least := range map[string]float64{"--us 10000": 0.1, "--us 1000": 0.03, "--us 100": 0.005, "--us 1000 --fresh 1": 0.03} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			capped(t, oneCard, "20", least, 0.23, []string{"CUDA_LAUNCH_BLOCKING=1"}, strings.Fields(args)...)
		})
	}
	// Also below 64 KiB: the first takes the card 574 µs, the others 2.
	for _, c := range []struct {
		config, args string
		least        float64
	}{
		{tenMS, "--what dtod_async --bytes 60000 --us 574", 0.1},
		{tenMS, "--what unified --bytes 60000 --us 574", 0.02},
		{oneCard, "--what dtod_async --bytes 64 --us 2", 0.02},
		{oneCard, "--what fill --bytes 64 --us 2", 0.02},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			capped(t, c.config, "20", c.least, 0.23, nil, strings.Fields(c.args)...)
		})
	}
	for _, what := range []string{"dtod", "unified"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			capped(t, tenMS, "20", 0.1, 0.23, nil, "--what", what, "--us", "10000")
		})
	}
}

// A clock that the user's tools make faster fills no budget faster.
func TestAFakedClockGivesNoMore(t *testing.T) {
	t.Parallel()
	env, _ := limited(t, oneCard, "20")
	result, err := run(t, preloads(t, env, "stress-clock.so"), "cap", "--us", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if part := result["part"].(float64); part < 0.01 || part > 0.23 {
		t.Errorf("%.3f of the card, want at most 0.23", part)
	}
}

// Several processes or contexts of a job have its limit together, also with kernels that were not
// seen before: what each was charged is not divided by those beside it whose slices were not in
// its time.
func TestSeveralOfAJobHaveItsLimitTogether(t *testing.T) {
	for _, c := range []struct {
		procs int
		args  string
	}{
		{1, "--fresh 1"},
		{2, "--fresh 1"},
		{4, "--fresh 1"},
		{1, "--fresh 1 --contexts 4"},
		{4, "--us 1000"},
		{4, "--fresh 1 --us 5000"},
	} {
		t.Run(fmt.Sprint(c.procs, " ", c.args), func(t *testing.T) {
			t.Parallel()
			env, _ := limited(t, oneCard, "30")
			part, late := together(t, env, c.procs, strings.Fields(c.args)...)
			ofCard(t, part, 0.15, 0.33, late)
		})
	}
}

// together runs so many of the program at a time and returns what they had of the card, and the largest
// part of its time in which one of them had no processor.
func together(t *testing.T, env []string, procs int, args ...string) (sum, latest float64) {
	t.Helper()
	parts := make(chan [2]float64, procs)
	for range procs {
		go func() {
			part := [2]float64{-1, 0}
			defer func() { parts <- part }()
			result, err := run(t, env, "cap", args...)
			if err != nil {
				t.Error(err)
				return
			}
			part = [2]float64{result["part"].(float64), result["late"].(float64)}
		}()
	}
	for range procs {
		part := <-parts
		sum, latest = sum+part[0], max(latest, part[1])
	}
	return sum, latest
}
