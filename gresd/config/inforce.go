// SPDX-License-Identifier: Apache-2.0

package config

import "sync/atomic"

// InForce is the configuration in force. All parts of gresd share one, and look into it each time
// that they need a key, so that a reload holds for all of them.
type InForce struct{ now atomic.Pointer[Config] }

// NewInForce returns one with the configuration of the start.
func NewInForce(c Config) *InForce {
	f := &InForce{}
	f.Set(c)
	return f
}

// Get returns the configuration, which must not be changed.
func (f *InForce) Get() *Config { return f.now.Load() }

// Set puts another configuration in force. After the start it must be one of [Reload].
func (f *InForce) Set(c Config) { f.now.Store(&c) }
