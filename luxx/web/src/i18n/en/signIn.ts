import { defineText, type Texts } from '../text'

const en = {
  title: 'Sign in',
  about: 'Work with AI agents on your own server.',
  username: 'Name',
  password: 'Password',
  signIn: 'Sign in',
  register: 'Create an account',
  registerTitle: 'Create an account',
  haveAccount: 'I have an account',
  defaultTitle: 'This server still has its default password',
  defaultText: (name: string, password: string) =>
    `The name is ${name}, the password ${password}. It works on this machine only, until you set another one.`,
  useDefault: 'Sign in with it',
  choosePassword: 'Choose your own password',
  chooseAbout: 'Your password was set by somebody else, or it is the default one. Choose one that only you know.',
  currentPassword: 'Present password',
  newPassword: 'New password',
  repeatPassword: 'New password again',
  passwordHint: 'At least 8 characters.',
  differ: 'The two passwords differ.',
  setPassword: 'Set the password',
  notNow: 'Not now',
  passwordSet: 'Your password is changed. All your other sign-ins have ended.',
  banner: 'This account has its default password, so that it can be used on this machine only.',
  ended: 'Your sign-in has ended. Sign in again to go on where you were; what you typed is kept.',
}

export type SignInText = Texts<typeof en>
export const useSignInText = defineText(en, import.meta.glob('../*/signIn.ts'))
