// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// The kernel's form of a POSIX access list, posix_acl_xattr.h: a version, then
// entries of tag, permissions and id, little endian, sorted by tag.
const (
	aclXattr   = "system.posix_acl_access"
	aclVersion = 2

	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclMask     = 0x10
	aclOther    = 0x20

	aclNoID = 0xffffffff
)

// accessList lets the owner do everything, one user read and enter, and nobody
// else do anything.
func accessList(uid uint32) []byte {
	list := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{
		{aclUserObj, 7, aclNoID},
		{aclUser, 5, uid},
		{aclGroupObj, 0, aclNoID},
		{aclMask, 5, aclNoID},
		{aclOther, 0, aclNoID},
	} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	return list
}

// openTo makes a folder readable for one user. Where the filesystem has no
// access lists, everybody may enter the folder but nobody may list it: its
// files have modes of their own. It reports which of the two was done.
func openTo(dir string, uid uint32) (listed bool, err error) {
	err = setxattr(dir, aclXattr, accessList(uid), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, unix.Chmod(dir, 0o711)
	}
	return err == nil, err
}

// setxattr is a variable so that a test can be a filesystem without lists.
var setxattr = unix.Setxattr
