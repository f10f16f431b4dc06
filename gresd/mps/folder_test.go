// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"sync"
	"testing"
)

// The last daemon of a card takes the card's folder with it.
func TestADaemonStartsWhileAnotherUsersOfTheCardEnds(t *testing.T) {
	dir := t.TempDir()
	comeAndGo := func(uid uint32) {
		f := folderOf(dir, Key{Card: card, UID: uid})
		for range 1500 {
			if err := f.make(uid, uid); err != nil {
				t.Errorf("make the folders of user %d: %v", uid, err)
				return
			}
			if err := f.remove(); err != nil {
				t.Errorf("remove the folders of user %d: %v", uid, err)
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { comeAndGo(nobody) })
	both.Go(func() { comeAndGo(games) })
	both.Wait()
}
