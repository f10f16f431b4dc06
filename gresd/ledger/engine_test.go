// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestBesideIsOneMoment(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 2)
	want := l.InUse()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = l.Begin(record(1))
			if _, err := l.Delete(1); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	seen := 0
	for end := time.Now().Add(time.Second); seen < 20000 && time.Now().Before(end); {
		_, others, known := l.GetWithOtherUse(1)
		if known {
			seen++
		}
		if !reflect.DeepEqual(others, want) {
			t.Fatalf("beside job 1 (known: %v) the others hold %+v, want %+v", known, others, want)
		}
	}
	close(stop)
	<-done
	if seen == 0 {
		t.Error("the job was never seen: nothing was tested")
	}
}
