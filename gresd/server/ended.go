// SPDX-License-Identifier: Apache-2.0

package server

import "github.com/slurm-vgpu/slurm-vgpu/gresd/wire"

// ended tells a process, before an allocation is refused, which of its job's processes in
// other PID namespaces have ended: it cannot see that. It then clears their slots itself.
func (s *Server) ended(jobID uint32, cred wire.Cred) wire.Reply {
	spec, ok := s.grants.Spec(jobID)
	if !ok || spec.UID != cred.UID && !wire.IsRoot(cred.UID) {
		return wire.UserError("vgpu: gresd: ended: user %d has no job %d with a share here", cred.UID, jobID)
	}
	owners, err := s.grants.Ended(jobID)
	if err != nil {
		return wire.UserError("vgpu: gresd: ended: job %d: %v", jobID, err)
	}
	return wire.Reply{OK: true, Ended: owners}
}
